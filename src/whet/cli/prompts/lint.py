"""``whet prompts lint``: what keeps a prefix cache from hitting, before it ships."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

from cyclopts import Parameter

from whet.core.errors import UsageError, WhetError
from whet.core.names import did_you_mean
from whet.core.redact import redact as without_secrets
from whet.core.store import write_atomic
from whet.prompts.options import Level, LintCommandOptions

if TYPE_CHECKING:
    from whet.prompts.lint import LintOptions, Tokenize
    from whet.prompts.lock import Entry, Lock
    from whet.prompts.prompt_file import Prompt
    from whet.prompts.rules import Finding

_MAX_BYTES: Final = 16 << 20
_BY_CHARACTERS: Final = "characters / 4"


def lint(
    paths: Annotated[
        tuple[Path, ...], Parameter(help="Prompt files, or folders of them.", negative=())
    ],
    /,
    *,
    options: LintCommandOptions = LintCommandOptions(),
) -> None:
    """Find in prompt templates and golden requests what keeps a prefix cache from hitting.

    Exit code 1 for findings, 2 for a file that cannot be read; the other files are linted.
    """
    from whet.prompts.lint import LintOptions

    tokens_by, tokenize = _tokenizer(options.tokenizer)
    rules = LintOptions(
        block_size=options.block_size,
        min_text=options.min_text,
        ignore=_rules(options.ignore),
        redact=options.redact,
        tokenize=tokenize,
    )
    lock = options.lock or Path("prompts.lock")
    work = _Work(options=rules, lock_path=lock, tokens_by=tokens_by)
    if not options.write_lock:
        work.read_lock(required=options.lock is not None)
    for path, is_named in _gather(paths, work.problems):
        work.lint(path, is_named=is_named, fix=options.fix)
    if options.write_lock:
        work.write_lock()
    work.check_vanished()
    _report(work, options.output, as_json=options.json)
    if work.problems:
        sys.exit(UsageError.exit_code)
    levels = get_args(Level)
    failing = levels[: levels.index(options.fail_on) + 1] if options.fail_on != "never" else ()
    if any(each.level in failing for each in work.findings):
        sys.exit(WhetError.exit_code)


@dataclass(kw_only=True, slots=True)
class _Work:
    """One run over all files."""

    options: LintOptions
    lock_path: Path
    tokens_by: str
    lock: Lock | None = None
    files: set[str] = field(default_factory=set)
    entries: dict[str, Entry] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def read_lock(self, *, required: bool) -> None:
        """Read the lock file; ``UsageError`` where it is required and missing, or broken."""
        from whet.prompts.lock import load_lock

        if required or self.lock_path.exists():
            if not self.lock_path.is_file():
                raise UsageError(f"no lock file at {self.lock_path}; write it with --write-lock")
            self.lock = load_lock(_read(self.lock_path).encode(), str(self.lock_path))

    def lint(self, path: Path, *, is_named: bool, fix: bool) -> None:
        """Lint one file; a file that cannot be read is a problem, and the run continues."""
        from whet.prompts.lint import fix_white_space, lint_file
        from whet.prompts.lock import make_entry
        from whet.prompts.prompt_file import TEMPLATES, NoChatRequest, read_prompts

        shown = _shown(path)
        try:
            raw = _read(path)
            if fix and path.suffix.lower() in TEMPLATES:
                fixed = fix_white_space(raw, self.options.ignore)
                if fixed != raw:
                    _rewrite(path, fixed)
                raw = fixed
            prompts = read_prompts(raw, shown)
        except NoChatRequest as error:
            if is_named:  # a folder may hold other JSON
                self.problems.append(str(error))
            return
        except UsageError as error:
            self.problems.append(str(error))
            return
        self.files.add(shown)
        self.findings += lint_file(raw, prompts, self.options)
        for prompt in prompts:
            key = self._key(path) + prompt.name[len(shown) :]
            self.entries[key] = make_entry(prompt, self.options.tokenize)
            self._compare(key, prompt, raw)

    def _key(self, path: Path) -> str:
        """A file's name in the lock: its path from the lock's folder."""
        return Path(os.path.relpath(path, self.lock_path.parent)).as_posix()

    def _compare(self, key: str, prompt: Prompt, raw: str) -> None:
        from whet.prompts.lock import compare

        if self.lock is None:
            return
        old = self.lock.prompts.get(key)
        if old is None:
            self._add("WHET052", prompt.path, 1)
            return
        size = self.options.block_size
        change = compare(old, prompt, self.options.tokenize, size)
        if change is None:
            return
        line = 1
        note = ", only in text that is not sent with every request"
        if change.at is not None:
            line += raw.count("\n", 0, prompt.file_offset(change.at))
            new = self.entries[key]
            note = (
                f" from this line on: {change.anew_tokens:,} tokens "
                f"({change.anew_tokens // size:,} blocks) are computed once more on every server; "
                f"its stable prefix of {old.prefix_tokens:,} tokens has {new.prefix_tokens:,} now"
            )
        self._add("WHET051", prompt.path, line, note, change.anew_tokens)

    def _add(
        self, rule: str, path: str, line: int, note: str = "", lost: int | None = None
    ) -> None:
        from whet.prompts.rules import RULES, Finding

        if rule in self.options.ignore:
            return
        known = RULES[rule]
        message = f"{known.summary}{note}; {known.fix}"
        self.findings.append(
            Finding(
                rule=rule,
                level=known.level,
                path=path,
                line=line,
                column=1,
                message=message,
                lost_tokens=lost,
            )
        )

    def check_vanished(self) -> None:
        """Report the lock's prompts whose file, or whose place in it, is gone."""
        for key in sorted(self.lock.prompts if self.lock else ()):
            path = self.lock_path.parent / _file_of(key)
            if key not in self.entries and not (path.exists() and _shown(path) not in self.files):
                self._add("WHET053", _shown(self.lock_path), 1, f": {key}")

    def write_lock(self) -> None:
        """Write this run's prompts; entries of other files that exist stay."""
        from whet.prompts.lock import Lock, dump_lock, load_lock

        old: dict[str, Entry] = {}
        if self.lock_path.is_file():
            try:
                old = dict(load_lock(self.lock_path.read_bytes(), "").prompts)
            except UsageError:
                old = {}
        others = {
            key: entry
            for key, entry in old.items()
            if (path := self.lock_path.parent / _file_of(key)).exists()
            and _shown(path) not in self.files
        }
        new = Lock(
            block_size=self.options.block_size,
            tokens_by=self.tokens_by,
            prompts=others | self.entries,
        )
        write_atomic(self.lock_path, dump_lock(new))
        print(f"{self.lock_path}: {_count(len(new.prompts), 'prompt')}", file=sys.stderr)


def _file_of(key: str) -> str:
    return re.sub(r"#\d+$", "", key)


def _shown(path: Path) -> str:
    return Path(os.path.relpath(path)).as_posix()


def _rules(given: Sequence[str]) -> frozenset[str]:
    from whet.prompts.rules import RULES

    rules = frozenset(word.strip().upper() for each in given for word in each.split(","))
    for rule in sorted(rules - RULES.keys()):
        near = did_you_mean(rule, RULES) or "; they run from WHET001 to WHET053"
        raise UsageError(f"--ignore {rule!r} is no rule{near}")
    return rules


def _tokenizer(path: Path | None) -> tuple[str, Tokenize]:
    """The name of the way to count tokens, and the way."""
    from whet.prompts.lint import estimate_tokens

    if path is None:
        return _BY_CHARACTERS, estimate_tokens
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no tokenizer.json at {path}; give the model's folder")
    try:
        model = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{file} is no tokenizer ({error}); give the model's folder") from error
    model.no_truncation()

    @functools.lru_cache(maxsize=4)
    def ends(text: str) -> Sequence[int]:
        offsets = model.encode(text, add_special_tokens=False).offsets
        return tuple(accumulate((end for _start, end in offsets), max))

    return f"tokenizer.json {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}", ends


def _gather(paths: Sequence[Path], problems: list[str]) -> Iterator[tuple[Path, bool]]:
    """Each file once, and whether it was named itself."""
    from whet.prompts.prompt_file import GOLDEN, TEMPLATES

    known = (*TEMPLATES, *GOLDEN)
    seen: set[Path] = set()
    for given in paths:
        files = [given]
        if given.is_dir():
            files = [path for path in _walk(given) if path.suffix.lower() in known]
            if not files:
                problems.append(f"{given} holds no prompt file; they end with {', '.join(known)}")
        elif given.exists() and given.suffix.lower() not in known:
            problems.append(f"{given} is no prompt file; they end with {', '.join(known)}")
            continue
        for path in files:
            if (real := path.resolve()) not in seen:
                seen.add(real)
                yield path, path is given


def _walk(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f[:1] != "." and f != "node_modules")
        yield from (Path(at) / name for name in sorted(names))


def _read(path: Path) -> str:
    """A file's text; ``UsageError`` where it is not UTF-8 text of at most 16 MiB."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UsageError(f"{path} is no file; give a prompt file")
        if facts.st_size > _MAX_BYTES:
            raise UsageError(f"{path} is larger than 16 MiB; split it or leave it out")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"no file or folder at {path}; check the path") from error
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); check its rights") from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{path} is UTF-16; save it as UTF-8")
    if b"\0" in data:
        raise UsageError(f"{path} is a binary file; a prompt is text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _rewrite(path: Path, text: str) -> None:
    real = path.resolve()
    mode = stat.S_IMODE(real.stat().st_mode)
    write_atomic(real, text.encode("utf-8"))
    real.chmod(mode)


def _report(work: _Work, output: Path | None, *, as_json: bool) -> None:
    findings = sorted(work.findings, key=lambda f: (f.path, f.line, f.column, f.rule))
    problems = [without_secrets(each) for each in work.problems]
    counts = Counter(each.level for each in findings)
    summary = ", ".join(
        _count(number, level)
        for level, number in (("error", counts["error"]), ("warning", counts["warning"]),
                              ("note", counts["note"]))
    )  # fmt: skip
    text = "".join(map(_line, findings))
    if as_json:
        data = {
            "files": len(work.files),
            "problems": problems,
            "findings": list(map(asdict, findings)),
        }
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    if output is not None:
        write_atomic(output, text.encode("utf-8", "replace"))
    else:
        sys.stdout.write(text)
    for sentence in problems:
        print(f"error: {sentence}", file=sys.stderr)
    print(
        f"{summary} in {_count(len(work.files), 'file')}",
        file=sys.stderr if as_json else sys.stdout,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _line(finding: Finding) -> str:
    place = f"{finding.path}:{finding.line}:{finding.column}"
    shown = "" if finding.excerpt is None else f"    {finding.excerpt}\n"
    return f"{place}: {finding.level} {finding.rule} {finding.message}\n{shown}"
