"""A run as one small archive that can be decided and reported elsewhere, without its traffic.

It has the records that ``Run`` reads and nothing else: no inputs, logs, weights, probes or reports.
Texts of requests and answers are left out, names of folders, hosts and the user's own variables
replaced. Times are rounded to 10 µs: a tenth of the bytes, and far below what any figure shows.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import shlex
import socket
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

from whet.core.errors import StorageError
from whet.core.load import trial_key
from whet.core.outside import json_lines, json_value, read_bytes
from whet.core.records.codec import encode
from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.redact import REDACTED, redact
from whet.core.store import RunStore, open_output

KINDS: Final = frozenset(
    {
        *("cells", "declared", "degenerate", "effects", "facts", "finalists", "lengths", "models"),
        *("notices", "quality", "quantized", "rates", "search", "spreads"),
        *("starts", "traffic", "tried", "variants", "verdicts", "workloads"),
    }
)
"""Folders of records that are exported as they are; trials are rounded."""
_FILES: Final = ("decision.json", "environment.json", "journal.jsonl", "resolved_spec.json")
_STEP_NS: Final = 10_000
_TEXTS: Final[Mapping[str, object]] = {"canary_text": "", "examples": [], "text": ""}
"""Fields that hold answers, and what is exported in their place."""
_DATA_FILES: Final = ("heldout", "log", "source", "tasks", "trace")
"""Keys of a spec whose file is named after the key."""
_LONG: Final = 6
"""A shorter value of a variable is hidden in the variable alone: it may be any word."""
_ENGINE_VARIABLE: Final = re.compile(
    r"(VLLM|SGLANG|GGML|LLAMA|CUDA|NCCL|OMP|MKL|KMP|TORCH|PYTORCH|TRITON|FLASHINFER|HF)_"
)
_PATH: Final = re.compile(r"(?<![\w/])~?(?:/[\w.+@=,-]+)+/([\w.+@=,-]+)/?")
_URL_HOST: Final = re.compile(r"(?<=://)(?:[^\s/\"'@]+@)?(?!127\.|0\.0\.0\.0|localhost)[^\s/:\"']+")
_IPV4: Final = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_SERVER_TEXT: Final = re.compile(r"\b(http_\d{3}|bad_json|server_error|sse_error): .*", re.DOTALL)
"""What a server says about a request may repeat it."""


def export_run(
    root: Path, out: Path, *, texts: bool = False, kinds: Collection[str] = KINDS
) -> None:
    """Write the run in ``root`` to ``out`` (.tar.xz); ``texts`` keeps those of answers.

    Raises ``StorageError`` where ``root`` holds no run or ``out`` cannot be written.
    """
    store = RunStore.read(root)
    documents = dict(_documents(root, kinds))
    cleaner = _Cleaner.of(documents, texts=texts)
    with (
        open_output(out) as target,
        lzma.open(target, "wb", preset=9 | lzma.PRESET_EXTREME) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        for name, data in (*_cleaned(documents, cleaner), *_trials(store, cleaner)):
            entry = tarfile.TarInfo(f"run/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _documents(root: Path, kinds: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The JSON of every file that is exported, by its path in the run."""
    for path in sorted(root.rglob("*.json*")):
        name = path.relative_to(root)
        if not path.is_file() or not (name.parts[0] in kinds or str(name) in _FILES):
            continue
        try:
            data = read_bytes(path, regular=True)
            lines = list(json_lines(data)) if path.suffix == ".jsonl" else None
            record = json_value(data) if lines is None else lines
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} is damaged ({error})") from error
        if lines is None and not isinstance(record, dict):
            raise StorageError(f"{path} is damaged (it is not a record)")
        yield str(name), record


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cleaner:
    """Replaces private names in JSON values; ``exact`` maps texts, ``variables`` values of env."""

    exact: Mapping[str, str]
    variables: Mapping[str, str]
    pattern: re.Pattern[str]
    texts: bool

    @classmethod
    def of(cls, documents: Mapping[str, Any], *, texts: bool) -> _Cleaner:
        """Find the private names of a run."""
        exact: dict[str, str] = {}
        variables: dict[str, str] = {}
        for key, value in _strings(documents):
            if value.startswith("/") and len(value.splitlines()) == 1:
                exact.setdefault(value, _file_name(key, value, exact.values()))
                if key in _DATA_FILES and len(PurePath(value).name) >= _LONG:
                    exact.setdefault(PurePath(value).name, exact[value])
            elif key == "worker":
                exact.setdefault(value, f"worker-{len(exact)}")
        for name, value in _variables(documents):
            if not (_ENGINE_VARIABLE.match(name) or value.isdigit() or value == REDACTED):
                hidden = variables.setdefault(value, f"hidden-{len(variables)}")
                exact[f"{name}={shlex.quote(value)}"] = f"{name}={hidden}"
                if len(value) >= _LONG:
                    exact[value] = hidden
        exact |= dict.fromkeys(_echoes(documents), "")
        host, spec = socket.gethostname(), json.dumps(documents.get("resolved_spec.json"))
        if host not in spec:  # it may be any word
            exact[host] = "host"
        pattern = re.compile("|".join(map(_whole, sorted(exact, key=len, reverse=True))) or "(?!)")
        return cls(exact=exact, variables=variables, pattern=pattern, texts=texts)

    def value(self, value: Any, key: str = "", *, folder: str = "") -> Any:
        """A JSON value without private names; ``folder`` stands before the name of a folder."""
        if key == "env":
            pairs = value.items() if isinstance(value, dict) else value
            shown = ((name, self.variables.get(x, self.text(x))) for name, x in pairs)
            return dict(shown) if isinstance(value, dict) else [list(each) for each in shown]
        if isinstance(value, dict):
            blank = {} if self.texts else _TEXTS
            items = {k: self.value(v, k, folder=folder) for k, v in value.items() if k not in blank}
            return {k: items.get(k, blank.get(k)) for k in value}
        if isinstance(value, list):
            return [self.value(each, key, folder=folder) for each in value]
        if not isinstance(value, str):
            return value
        if value.startswith("/") and value in self.exact:
            return folder + self.exact[value]
        return self.text(value)

    def text(self, text: str) -> str:
        """``text`` without private names."""
        text = self.pattern.sub(lambda match: self.exact[match[0]], redact(text))
        text = _PATH.sub(r"\1", _IPV4.sub("0.0.0.0", _URL_HOST.sub("server", text)))
        return _SERVER_TEXT.sub(r"\1", text)


def _whole(text: str) -> str:
    """The pattern of a text where it is not part of a longer name."""
    before = r"(?<![\w./-])" if text[:1] == "/" or text[:1].isalnum() else ""
    return before + re.escape(text) + (r"(?![\w-])" if text[-1:].isalnum() else "")


def _file_name(key: str, path: str, taken: Iterable[str]) -> str:
    """The last name of a path, the key's for data; numbered where another path has it."""
    end = PurePath(path)
    stem, suffix = (key, end.suffix) if key in _DATA_FILES else (end.name, "")
    number = sum(each == f"{stem}{suffix}" or each.startswith(f"{stem}~") for each in taken)
    return f"{stem}~{number + 1}{suffix}" if number else f"{stem}{suffix}"


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string below a JSON value, with the key that it is under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, key)


def _variables(value: Any) -> Iterator[tuple[str, str]]:
    """Every variable below a key ``env``, of a spec or of a resolved variant."""
    if isinstance(value, list):
        for item in value:
            yield from _variables(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "env":
                yield from ((k, v) for k, v in (item.items() if isinstance(item, dict) else item))
            else:
                yield from _variables(item)


def _echoes(documents: Mapping[str, Any]) -> Iterator[str]:
    """Ends of sentences that quote an answer or a prompt."""
    for name, record in documents.items():
        if name.startswith("degenerate/"):
            _, mark, quoted = (record.get("reason") or "").partition(";")
            yield from [mark + quoted] if mark else []
        if name.startswith("quality/"):
            for problem in (record.get("identity") or {}).get("problems", ()):
                _, mark, quoted = problem.partition("): ")
                yield from [mark[1:] + quoted] if mark else []


def _cleaned(documents: Mapping[str, Any], cleaner: _Cleaner) -> Iterator[tuple[str, bytes]]:
    for name, document in documents.items():
        if name.startswith("tried/"):
            plain = json.dumps(cleaner.value(json.loads(document["value"]), folder="./"))
            yield name, _json(cleaner.value(document) | {"value": plain})
        elif name == "journal.jsonl":
            lines = (x | {"sha256": None} if isinstance(x, dict) else x for x in document)
            yield name, b"".join(_json(cleaner.value(each)) + b"\n" for each in lines)
        else:
            # Weights of a resolved spec may be a folder, which is ./NAME; NAME alone is a recipe.
            folder = "./" if name == "resolved_spec.json" else ""
            yield name, _json(cleaner.value(document, folder=folder))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _trials(store: RunStore, cleaner: _Cleaner) -> Iterator[tuple[str, bytes]]:
    for record in store.all("trials", TrialRecord):
        requests = [encode(_rounded(event, texts=cleaner.texts)) for event in record.requests]
        data = cleaner.value(encode(replace(record, requests=()))) | {"requests": requests}
        key = trial_key(record.variant, record.load, record.trial)
        yield f"trials/{key}.json", _json(data)


def _rounded(event: RequestEvent, *, texts: bool) -> RequestEvent:
    def near(time_ns: int) -> int:
        return round(time_ns / _STEP_NS) * _STEP_NS

    return replace(
        event,
        scheduled_ns=near(event.scheduled_ns),
        sent_ns=near(event.sent_ns),
        chunk_ns=tuple(near(each) for each in event.chunk_ns),
        ended_ns=near(event.ended_ns),
        text=event.text if texts else "",
        detail=None if event.error is not None else event.detail,
    )
