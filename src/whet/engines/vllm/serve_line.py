"""The words of a ``vllm serve`` command of a user's own, read as a variant's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.flags import parse_json
from whet.core.records.engine import BY_LOAD, Scalar
from whet.core.redact import SECRET
from whet.engines.command import owned_flags
from whet.engines.vllm.flags import shipped_flags

_SHORT: Final = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
    "q": "quantization", "O": "optimization-level", "asc": "api-server-count",
    "cc": "compilation-config", "sc": "speculative-config",
}  # fmt: skip
_SWITCHES: Final = frozenset({"disable-log-stats", "disable-log-requests", "headless", "grpc"})
"""Flags without a value and without a ``--no-`` twin."""
_SEVERAL: Final = frozenset(
    {"served-model-name", "lora-modules", "allowed-origins", "middleware"}
    | {"cudagraph-capture-sizes", "limit-mm-per-prompt"}
)
"""Flags that take several words."""
_UNHEARD: Final = frozenset({"disable_log_requests", "tokenizer_revision", "code_revision"})
"""Flags without a meaning in a measurement."""
_OPTIMIZED: Final = re.compile(r"-O(\d)")
_NUMBER: Final = re.compile(r"-?\d+(?P<fraction>\.\d+)?")
_SHORT_KEYS: Final = {
    "spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens",
}  # fmt: skip
_OWN_KEYS: Final = {"num_speculative_tokens": "num_tokens", "model": "draft"}
_PLAIN_KEYS: Final = (
    "method", "rejection_sample_method", "draft_sample_method", "draft_lm_head_quantization",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeCommand:
    """What a command serves. ``speculation`` has a spec's keys; its method may be missing.

    ``dropped`` are the flags that whet sets itself, or that have no place in a spec.
    """

    model: str | None
    revision: str | None
    args: Mapping[str, Scalar]
    prefix_cache: bool
    speculation: Mapping[str, Any] | None
    dropped: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class _Flags:
    """The flags as they are read: those of one JSON object are merged."""

    model: str | None = None
    values: dict[str, Scalar] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def set(self, name: str, value: Scalar) -> None:
        """Keep ``name``, or with dots a key within its JSON object."""
        base, *keys = name.replace("-", "_").split(".")
        if isinstance(value, str) and SECRET.search(value):
            self.dropped.append(base)
        elif keys:
            whole = parse_json(self.values.get(base, "{}"))
            inside: Any = whole if isinstance(whole, dict) else {}
            whole = inside
            for key in keys[:-1]:
                inside = inside.setdefault(key, {})
                if not isinstance(inside, dict):
                    raise UsageError(
                        f"the present command gives {base}.{key} a value and keys", fix="drop one"
                    )
            inside[keys[-1]] = parse_json(value) or value
            self.values[base] = json.dumps(whole)
        else:
            self.values[base] = value


def read_serve_words(words: Sequence[str]) -> ServeCommand:
    """Read the words behind ``vllm serve``.

    Raises ``UsageError`` for a word that belongs to no flag, for a shell variable in a flag that
    counts, and for speculation that cannot be read.
    """
    flags = _Flags()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = _flag_name(word)
        if name is not None:
            level = _OPTIMIZED.fullmatch(word)
            value = word.partition("=")[2] if "=" in word else level and level[1]
            _take(flags, name, value, rest)
        elif flags.model is None:
            flags.model = word
        else:
            raise UsageError(
                f"the present command has the word {word[:80]!r}, which belongs to no flag",
                fix="give the command as it is run, or its flags as --flag=value",
            )
    return _command(flags)


def _flag_name(word: str) -> str | None:
    """``max-model-len`` of ``--max_model_len=8``; None for a value."""
    if word.startswith("--") and len(word) > 2:
        base, dot, keys = word[2:].partition("=")[0].partition(".")
        return base.replace("_", "-") + dot + keys
    short = word.removeprefix("-").partition("=")[0] if word.startswith("-") else ""
    base, dot, keys = short.partition(".")
    if base in _SHORT:
        return _SHORT[base] + dot + keys
    return "optimization-level" if _OPTIMIZED.fullmatch(word) else None


def _take(flags: _Flags, name: str, value: str | None, rest: list[str]) -> None:
    """Set one flag, with the words of ``rest`` that are its value."""
    values = [] if value is None else [value]
    switch = name.startswith("no-") or f"no-{name}" in shipped_flags() or name in _SWITCHES
    while value is None and not switch and rest and _flag_name(rest[0]) is None:
        values.append(rest.pop(0))
        if name not in _SEVERAL:
            break
    if name.startswith("no-") and not values:
        flags.set(name.removeprefix("no-"), False)
    elif not values:
        flags.set(name, True)
    elif len(values) == 1:
        flags.set(name, _scalar(values[0]))
    elif name == "cudagraph-capture-sizes":
        sizes = json.dumps([_scalar(each) for each in values])
        flags.set("compilation-config.cudagraph_capture_sizes", sizes)
    else:
        flags.set(name, " ".join(values))


def _scalar(text: str) -> Scalar:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return float(text) if match["fraction"] else int(text)


def _command(flags: _Flags) -> ServeCommand:
    values, owned = flags.values, owned_flags("vllm")
    if "config" in values:
        raise UsageError(
            "the present command reads flags from a file (--config)",
            fix="write them into the command",
        )
    model = str(values.pop("model")) if "model" in values else flags.model
    revision = values.pop("revision", None)
    prefix_cache = values.pop("enable_prefix_caching", True) is not False
    speculation = _speculation(values)
    dropped = [name for name in values if name in owned or name in _UNHEARD]
    args = {name: value for name, value in values.items() if name not in dropped}
    for name, text in (("model", model), ("speculative_config", speculation), *args.items()):
        if "$" in str(text):
            raise UsageError(
                f"the present command has a shell variable in {name} ({str(text)[:80]!r})",
                fix="write its value in its place",
            )
    return ServeCommand(
        model=model,
        revision=None if revision is None else str(revision),
        args=args,
        prefix_cache=prefix_cache,
        speculation=speculation,
        dropped=tuple(dict.fromkeys((*flags.dropped, *dropped))),
    )


def _speculation(values: dict[str, Scalar]) -> dict[str, Any] | None:
    """Take the keys of speculation out of the flags, by a spec's names."""
    config = parse_json(values.pop("speculative_config", "{}"))
    if not isinstance(config, dict):
        raise UsageError(
            "the speculative config of the present command is not a JSON object",
            fix="quote it for the shell: --speculative-config '{\"method\": …}'",
        )
    short = {
        "method": "spec_method",
        "model": "spec_model",
        "num_speculative_tokens": "spec_tokens",
    }
    config |= {key: values.pop(name) for key, name in short.items() if name in values}
    if not config:
        return None
    if type(config.get("num_speculative_tokens")) is not int:
        raise UsageError(
            "the speculation of the present command has no num_speculative_tokens",
            fix="write the number that vLLM says at its start into the command",
        )
    return dict(_spec_keys(config))


def _spec_keys(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    options: dict[str, Scalar] = {}
    for key, value in config.items():
        if key in _OWN_KEYS:
            yield _OWN_KEYS[key], value
        elif key == BY_LOAD:
            yield "num_tokens_by_load", value
        elif key == "method":
            yield key, "mtp" if str(value).endswith("_mtp") else value
        elif key in _PLAIN_KEYS:
            yield key, value
        else:
            options[key] = value if isinstance(value, Scalar) else json.dumps(value)
    if options:
        yield "options", options
