"""``whet prompts lint``: what will keep a prefix cache from hitting, before it ships."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from whet.core.errors import UsageError, WhetError
from whet.core.names import did_you_mean
from whet.core.redact import redact as without_secrets
from whet.core.store import write_atomic

if TYPE_CHECKING:
    from whet.prefix.lint import LintOptions
    from whet.prefix.lock import Change, Entry, Lock, Prompt, Tokenize
    from whet.prefix.sarif import Finding

_MOST_BYTES: Final = 16 << 20
_FORMATS: Final = ("text", "json", "sarif")
_ENDS: Final = ("error", "warning", "note", "never")

_BY_CHARACTERS: Final = "characters / 4"
_DAY_S: Final = 86_400
_COST: Final = "Cost"
_LOCK: Final = "Lock file"
_REPORT: Final = "Report"


def lint(
    paths: Annotated[list[Path], typer.Argument(help="Prompt files, or folders of them.")],
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend white space in templates, in place.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A rule to leave out, such as WHET021; repeatable.")
    ] = None,
    min_text: Annotated[
        int, typer.Option(min=0, help="Characters of stable text that are worth a finding.")
    ] = 64,
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens of a KV block.", rich_help_panel=_COST)
    ] = 16,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Folder with tokenizer.json; 4 characters a token by default.",
            rich_help_panel=_COST,
        ),
    ] = None,
    requests_per_day: Annotated[
        float | None, typer.Option(min=0, help="With the next, for seconds.", rich_help_panel=_COST)
    ] = None,
    prefill_tokens_per_second: Annotated[
        float | None, typer.Option(min=0.001, help="As measured.", rich_help_panel=_COST)
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(help="prompts.lock, where there is one.", rich_help_panel=_LOCK),
    ] = None,
    write_lock: Annotated[
        bool, typer.Option("--write-lock", help="Accept what is there.", rich_help_panel=_LOCK)
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="text, json or sarif.", rich_help_panel=_REPORT)
    ] = "text",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A file for it.", rich_help_panel=_REPORT),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="No excerpt of a prompt.", rich_help_panel=_REPORT)
    ] = False,
    fail_on: Annotated[
        str, typer.Option(help="error, warning, note or never.", rich_help_panel=_REPORT)
    ] = "warning",
) -> None:
    """Find in prompt templates and golden requests what keeps a prefix cache from hitting.

    Exit code 1 where something is found, 2 where a file cannot be read; the others are linted.
    """
    from whet.prefix.lint import LintOptions

    _one_of("--format", form, _FORMATS)
    _one_of("--fail-on", fail_on, _ENDS)
    if requests_per_day is not None and prefill_tokens_per_second is None:
        raise UsageError("--requests-per-day says nothing without --prefill-tokens-per-second")
    tokens_by, tokenize = _tokenizer(tokenizer)
    options = LintOptions(
        block_size=block_size,
        least_text=min_text,
        ignore=_rules(ignore or []),
        redact=redact,
        tokenize=tokenize,
        requests_per_day=requests_per_day,
        prefill_tokens_per_s=prefill_tokens_per_second,
    )
    work = _Work(options=options, lock_path=lock or Path("prompts.lock"), tokens_by=tokens_by)
    if not write_lock:
        work.read_lock(required=lock is not None)
    for path, named in _gather(paths, work.problems):
        work.lint(path, named=named, fix=fix)
    if write_lock:
        work.write_lock()
    work.check_vanished()
    _report(work, form, output)
    if work.problems:
        raise typer.Exit(UsageError.exit_code)
    if fail_on != "never" and any(
        _ENDS.index(each.level) <= _ENDS.index(fail_on) for each in work.findings
    ):
        raise typer.Exit(WhetError.exit_code)


@dataclass(kw_only=True, slots=True)
class _Work:
    """One run over all files: what was read, found and could not be read."""

    options: LintOptions
    lock_path: Path
    tokens_by: str
    lock: Lock | None = None
    files: set[str] = field(default_factory=set)
    entries: dict[str, Entry] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def read_lock(self, *, required: bool) -> None:
        """Read the lock file; ``UsageError`` where it is asked for and lacks, or is none."""
        from whet.prefix.lock import load_lock

        if required or self.lock_path.exists():
            if not self.lock_path.is_file():
                raise UsageError(f"no lock file at {self.lock_path}; write it with --write-lock")
            text = _read(self.lock_path)
            self.lock = load_lock(text.encode(), str(self.lock_path))
            self.texts[_shown(self.lock_path)] = text

    def lint(self, path: Path, *, named: bool, fix: bool) -> None:
        """Lint one file; what keeps it from being read is a problem, and the run goes on."""
        from whet.prefix.lint import TEMPLATES, fix_white_space, lint_file, read_prompts
        from whet.prefix.lock import NoChatRequest, make_entry

        shown = _shown(path)
        try:
            raw = _read(path)
            if fix and path.suffix.lower() in TEMPLATES:
                mended = fix_white_space(raw, self.options.ignore)
                if mended != raw:
                    _rewrite(path, mended)
                raw = mended
            prompts = read_prompts(raw, shown)
        except NoChatRequest as error:
            if named:  # a folder may hold other JSON
                self.problems.append(str(error))
            return
        except UsageError as error:
            self.problems.append(str(error))
            self.files.discard(shown)
            return
        self.files.add(shown)
        found = lint_file(raw, prompts, self.options)
        for prompt in prompts:
            key = self._key(path) + prompt.sent.name[len(shown) :]
            self.entries[key] = make_entry(prompt, self.options.tokenize, self.options.block_size)
            found += self._against_lock(key, prompt)
        if found:
            self.findings += found
            self.texts[shown] = raw

    def _key(self, path: Path) -> str:
        """A file's name in the lock: its path from the lock's folder."""
        return Path(os.path.relpath(path, self.lock_path.parent)).as_posix()

    def _against_lock(self, key: str, prompt: Prompt) -> list[Finding]:
        from whet.prefix.lock import compare

        if self.lock is None:
            return []
        old = self.lock.prompts.get(key)
        if old is None:
            words = "this prompt is not in the lock file; add it with --write-lock"
            return self._finding("WHET052", prompt.sent.path, (prompt.sent.raw, 0), words)
        change = compare(old, prompt, self.options.tokenize, self.options.block_size)
        if change is None:
            return []
        at = prompt.sent.start if change.at is None else prompt.sent.to_raw.at(change.at)
        words = _tell_change(change, (old, self.entries[key]), self.options)
        lost = change.anew_tokens
        return self._finding("WHET051", prompt.sent.path, (prompt.sent.raw, at), words, lost)

    def _finding(
        self, rule: str, path: str, place: tuple[str, int], words: str, lost: int | None = None
    ) -> list[Finding]:
        from whet.prefix.sarif import RULES, Finding

        if rule in self.options.ignore:
            return []
        text, at = place
        line = text.count("\n", 0, at) + 1
        column = at - text.rfind("\n", 0, at)
        return [
            Finding(
                rule=rule,
                level=RULES[rule].level,
                path=path,
                line=line,
                column=column,
                end_line=line,
                end_column=column + 1,
                message=words,
                lost_tokens=lost,
            )
        ]

    def check_vanished(self) -> None:
        """Tell the lock's prompts whose file, or whose place in it, is gone."""
        for key in sorted(self.lock.prompts if self.lock else ()):
            path = self.lock_path.parent / _file_of(key)
            if key in self.entries or (path.exists() and _shown(path) not in self.files):
                continue
            shown = _shown(self.lock_path)
            text = self.texts[shown]
            at = max(text.find(json.dumps(key, ensure_ascii=False)), 0)
            words = f"{key} is gone; take it out of the lock file with --write-lock"
            self.findings += self._finding("WHET053", shown, (text, at), words)

    def write_lock(self) -> None:
        """Write the lock: this run's prompts, and those of files it was not asked about."""
        from whet.prefix.lock import Lock, dump_lock, load_lock

        kept: dict[str, Entry] = {}
        if self.lock_path.is_file():
            try:
                kept = dict(load_lock(self.lock_path.read_bytes(), "").prompts)
            except UsageError:
                kept = {}
        kept = {
            key: entry
            for key, entry in kept.items()
            if (path := self.lock_path.parent / _file_of(key)).exists()
            and _shown(path) not in self.files
        }
        new = Lock(
            block_size=self.options.block_size,
            tokens_by=self.tokens_by,
            prompts=kept | self.entries,
        )
        write_atomic(self.lock_path, dump_lock(new))
        typer.echo(f"{self.lock_path}: {_count(len(new.prompts), 'prompt')}", err=True)


def _tell_change(change: Change, entries: tuple[Entry, Entry], options: LintOptions) -> str:
    old, new = entries
    mend = "take the change back, or accept it with --write-lock"
    if change.at is None:
        return f"the file changed, but nothing that is sent with every request; {mend}"
    if old.prefix_sha256 == new.prefix_sha256:
        return (
            f"this prompt changed within 64 characters from here, behind its stable prefix; {mend}"
        )
    words = (
        f"this prompt changed within 64 characters from here: from block "
        f"{change.kept_tokens // options.block_size + 1} on, {options.tokens(change.anew_tokens)} "
        "are computed anew once on every server, and no request of the old version shares beyond "
        f"token {change.shared_tokens:,}; its stable prefix of {old.prefix_tokens:,} tokens has "
        f"{new.prefix_tokens:,} now"
    )
    speed = options.prefill_tokens_per_s
    if speed:
        seconds = change.anew_tokens / speed
        words += f"; {seconds:,.2f} s of prefill each time"
        if options.requests_per_day:
            # Until the first request has computed the blocks, those that arrive compute them too.
            early = 1 + int(options.requests_per_day / _DAY_S * seconds)
            words += f", about {early:,} times on one server at that traffic"
    return f"{words}; {mend}"


def _file_of(key: str) -> str:
    return re.sub(r"#\d+$", "", key)


def _shown(path: Path) -> str:
    return Path(os.path.relpath(path)).as_posix()


def _one_of(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{flag} {value!r}: choose one of {', '.join(known)}")


def _rules(given: Sequence[str]) -> frozenset[str]:
    from whet.prefix.sarif import RULES

    rules = frozenset(word.strip().upper() for each in given for word in each.split(","))
    for rule in sorted(rules - RULES.keys()):
        near = did_you_mean(rule, RULES) or "; they run from WHET001 to WHET053"
        raise UsageError(f"--ignore {rule!r} is no rule{near}")
    return rules


def _tokenizer(path: Path | None) -> tuple[str, Tokenize]:
    """How tokens are counted, in words and in deed."""
    from whet.prefix.lock import estimate_tokens

    if path is None:
        return _BY_CHARACTERS, estimate_tokens
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no tokenizer.json at {path}; name the model's folder")
    try:
        model = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{file} is no tokenizer ({error}); name the model's folder") from error
    model.no_truncation()

    @functools.lru_cache(maxsize=4)
    def ends(text: str) -> Sequence[int]:
        offsets = model.encode(text, add_special_tokens=False).offsets
        return tuple(accumulate((end for _start, end in offsets), max))

    return f"tokenizer.json {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}", ends


def _gather(paths: Sequence[Path], problems: list[str]) -> Iterator[tuple[Path, bool]]:
    """Each file once, and whether it was named itself; what is none is a problem."""
    from whet.prefix.lint import GOLDEN, TEMPLATES

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
        folders[:] = sorted(
            name for name in folders if name[:1] != "." and name not in ("node_modules",)
        )
        yield from (Path(at) / name for name in sorted(names))


def _read(path: Path) -> str:
    """A file's text; ``UsageError`` where it cannot be one."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path} is no file; name a prompt file")
        if found.st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than 16 MiB; split it or leave it out")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"no file or folder at {path}; mind the folder you are in") from error
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); mind its rights") from error
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


def _report(work: _Work, form: str, output: Path | None) -> None:
    from whet.prefix.sarif import dump_sarif, to_sarif

    found = sorted(work.findings, key=lambda f: (f.path, f.line, f.column, f.rule))
    problems = [without_secrets(each) for each in work.problems]
    counts = Counter(each.level for each in found)
    summary = ", ".join(_count(counts[level], level) for level in _ENDS[:3])
    summary = f"{summary} in {_count(len(work.files), 'file')}"
    if form == "sarif":
        text = dump_sarif(to_sarif(found, work.texts, problems))
    elif form == "json":
        data = {
            "files": len(work.files),
            "problems": problems,
            "findings": list(map(asdict, found)),
        }
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    else:
        text = "".join(_line(each) for each in found)
    if output is not None:
        write_atomic(output, text.encode("utf-8", "replace"))
    else:
        typer.echo(text, nl=False)
    for sentence in problems:
        typer.echo(f"error: {sentence}", err=True)
    typer.echo(summary, err=form != "text")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _line(finding: Finding) -> str:
    place = f"{finding.path}:{finding.line}:{finding.column}"
    shown = "" if finding.excerpt is None else f"    {finding.excerpt}\n"
    return f"{place}: {finding.level} {finding.rule} {finding.message}\n{shown}"
