"""The words of a ``vllm serve`` command of a user's own, read as a variant's settings."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.flags import parse_json
from whet.core.records.engine import BY_LOAD, Scalar
from whet.core.redact import SECRET
from whet.engines.command import owned_flags
from whet.engines.vllm.flags import shipped_flags

_SIZES: Final = "compilation-config.cudagraph_capture_sizes"
_OTHER_NAMES: Final = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
    "q": "quantization", "O": "optimization-level", "asc": "api-server-count",
    "cc": "compilation-config", "sc": "speculative-config", "cudagraph-capture-sizes": _SIZES,
    "spec-method": "speculative-config.method", "spec-model": "speculative-config.model",
    "spec-tokens": "speculative-config.num_speculative_tokens",
}  # fmt: skip
_SWITCHES: Final = frozenset({"disable-log-stats", "disable-log-requests", "headless", "grpc"})
"""Flags without a value and without a ``--no-`` twin."""
_SEVERAL: Final = frozenset(
    {"served-model-name", "lora-modules", "allowed-origins", "middleware"}
    | {_SIZES, "limit-mm-per-prompt"}
)
"""Flags that take several words."""
_UNHEARD: Final = frozenset({"disable_log_requests", "tokenizer_revision", "code_revision"})
"""Flags without a meaning in a measurement."""
_LEVEL: Final = re.compile(r"^-O(?=\d$)")
_NUMBER: Final = re.compile(r"-?\d+(?P<fraction>\.\d+)?")
_SPEC_KEYS: Final = {
    "num_speculative_tokens": "num_tokens", "model": "draft", BY_LOAD: "num_tokens_by_load",
    **{name: name for name in ("method", "rejection_sample_method", "draft_sample_method")},
    "draft_lm_head_quantization": "draft_lm_head_quantization",
}  # fmt: skip


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


def read_serve_words(words: Sequence[str]) -> ServeCommand:
    """Read the words behind ``vllm serve``.

    Raises ``UsageError`` for a word that belongs to no flag, for a shell variable in a flag that
    counts, and for speculation that cannot be read.
    """
    values: dict[str, Any] = {}
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, value = _flag(word)
        if name is not None:
            _set(values, name, list(_given(name, rest)) if value is None else [value])
        elif "model" not in values:
            values["model"] = word
        else:
            raise UsageError(
                f"the present command has the word {word[:80]!r}, which belongs to no flag",
                fix="give the command as it is run, or its flags as --flag=value",
            )
    return _command(values)


def _flag(word: str) -> tuple[str | None, str | None]:
    """``("max-model-len", "8")`` of ``--max_model_len=8``; ``(None, None)`` for a value."""
    name, equals, value = _LEVEL.sub("-O=", word).partition("=")
    base, dot, keys = name.lstrip("-").partition(".")
    base = base.replace("_", "-")
    if not base or not (name.startswith("--") or (name[0] == "-" and base in _OTHER_NAMES)):
        return None, None
    return _OTHER_NAMES.get(base, base) + dot + keys, value if equals else None


def _given(name: str, rest: deque[str]) -> Iterator[str]:
    """Take the words that are a flag's value from ``rest``; none of a switch."""
    if name.startswith("no-") or f"no-{name}" in shipped_flags() or name in _SWITCHES:
        return
    while rest and _flag(rest[0])[0] is None:
        yield rest.popleft()
        if name not in _SEVERAL:
            return


def _set(values: dict[str, Any], name: str, given: Sequence[str]) -> None:
    """Set a flag, or with dots a key within its JSON object."""
    value: Any = " ".join(given) if len(given) > 1 else _scalar(given[0]) if given else True
    if name == _SIZES:
        value = [_scalar(each) for each in given]
    if not given and name.startswith("no-"):
        name, value = name.removeprefix("no-"), False
    *path, last = name.replace("-", "_").split(".")
    try:
        for key in path:
            values = values.setdefault(key, {})
        values[last] = value
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"the present command gives {'.'.join(path)} a value and keys", fix="drop one"
        ) from error


def _scalar(text: str) -> Any:
    """A number, a JSON object or list, or the text itself."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return parse_json(text) or text
    return float(text) if match["fraction"] else int(text)


def _command(values: dict[str, Any]) -> ServeCommand:
    if "config" in values:
        raise UsageError(
            "the present command reads flags from a file (--config)",
            fix="write them into the command",
        )
    secret = [name for name, value in values.items() if SECRET.search(str(value))]
    values = {name: value for name, value in values.items() if name not in secret}
    model, revision = values.pop("model", None), values.pop("revision", None)
    prefix_cache = values.pop("enable_prefix_caching", True) is not False
    speculation = _speculation(values.pop("speculative_config", {}))
    dropped = [name for name in values if name in _UNHEARD or name in owned_flags("vllm")]
    args = {name: _plain(value) for name, value in values.items() if name not in dropped}
    for name, text in (("model", model), ("speculative_config", speculation), *args.items()):
        if "$" in str(text):
            raise UsageError(
                f"the present command has a shell variable in {name} ({str(text)[:80]!r})",
                fix="write its value in its place",
            )
    return ServeCommand(
        model=None if model is None else str(model),
        revision=None if revision is None else str(revision),
        args=args,
        prefix_cache=prefix_cache,
        speculation=speculation,
        dropped=(*secret, *dropped),
    )


def _plain(value: Any) -> Scalar:
    return value if isinstance(value, Scalar) else json.dumps(value)


def _speculation(config: Any) -> dict[str, Any] | None:
    """The speculative config by a spec's names."""
    if not isinstance(config, dict):
        raise UsageError(
            "the speculative config of the present command is not a JSON object",
            fix="quote it for the shell: --speculative-config '{\"method\": …}'",
        )
    if not config:
        return None
    if type(config.get("num_speculative_tokens")) is not int:
        raise UsageError(
            "the speculation of the present command has no num_speculative_tokens",
            fix="write the number that vLLM says at its start into the command",
        )
    own = {_SPEC_KEYS[key]: value for key, value in config.items() if key in _SPEC_KEYS}
    if str(own.get("method")).endswith("_mtp"):
        own["method"] = "mtp"
    options = {key: _plain(value) for key, value in config.items() if key not in _SPEC_KEYS}
    return {**own, "options": options} if options else own
