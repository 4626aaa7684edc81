"""The user's present command: shell text, a compose file or a Kubernetes manifest → its words.

Nothing of it is run or expanded.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from whet.checkpoint import read_facts
from whet.checkpoint.heads import read_head
from whet.core.errors import UsageError
from whet.core.outside import yaml_values
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.model import ModelFacts
from whet.core.redact import is_env_name, public_env
from whet.engines.vllm.serve_line import ServeCommand, read_serve_words
from whet.flow.run.check.checkpoints import Checkpoints
from whet.predict.feasibility import copy_difference

_MOST_BYTES: Final = 1 << 20
_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_SHELLS: Final = ("sh", "bash")
_ENDS: Final = frozenset(";&|()\n")
"""Characters that end a command in a shell."""
_UNREAD: Final = re.compile(
    r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<!\S)(?:#[^\n]*|[\d&]?[<>]+(?:&\d|[ \t]*[^\s;&|]+))""",
    re.S,
)
"""Comments and redirections; what is quoted, which stays, is the group."""
_IMAGE: Final = re.compile(
    r"(?=.*[/:])(?:[\w.:-]+/)*[\w.-]*vllm[\w.-]*(?:/[\w.-]+)*(?:[:@][\w.:-]+)?"
)
_ENGINE_ENV: Final = (
    "VLLM_", "NCCL_", "OMP_", "TORCH", "PYTORCH_", "FLASHINFER_", "TRITON_", "CUDA_MODULE_",
    "CUDA_DEVICE_MAX_",
)  # fmt: skip
_FIX: Final = "give the line that starts vLLM (vllm serve MODEL …), or a file that holds one"

_Server = tuple[Sequence[str], Mapping[str, str]]
"""The words behind ``vllm serve``, and the variables that are set for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PresentCommand:
    """What the user serves now; ``left_out`` are flags and variables that a spec does not take."""

    serve: ServeCommand
    env: Mapping[str, str]
    left_out: tuple[str, ...]


def read_current(text: str) -> PresentCommand:
    """Read a command, or the file that ``text`` names.

    Raises ``UsageError`` where it holds no vLLM server, or several, or cannot be read.
    """
    text, is_yaml = _content(text)
    try:
        matches = list(_services(text) if is_yaml else _lines(text))
        serves = [read_serve_words(words) for words, _ in matches]
    except (ValueError, yaml.YAMLError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UsageError(f"the present command cannot be read ({reason})", fix=_FIX) from error
    if not matches:
        raise UsageError("the present command starts no vLLM server", fix=_FIX)
    if len(matches) > 1:
        raise UsageError(
            f"the present command starts {len(matches)} vLLM servers", fix="give one of them"
        )
    serve, given = serves[0], matches[0][1]
    env = {
        name: value
        for name, value in public_env(given).items()
        if name.startswith(_ENGINE_ENV) and "$" not in value
    }
    gone = [name for name in given if name not in env]
    return PresentCommand(serve=serve, env=env, left_out=(*serve.dropped, *gone))


def current_variant(
    present: PresentCommand, target: ModelFacts, checkpoints: Checkpoints, folder: Path
) -> dict[str, Any]:
    """Return the variant that serves as the present command does, as a spec in ``folder`` has it.

    Raises ``UsageError`` where it serves another model than ``target``, ``CheckpointError`` for a
    model, a head or a draft that cannot be read.
    """
    serve = present.serve
    variant: dict[str, Any] = {}
    with checkpoints.readable_errors("the present command: "):
        if serve.model is not None and _is_copy(serve, target, checkpoints):
            variant["weights"] = shown_model(serve.model, folder)
        if serve.speculation is not None:
            own = dict(serve.speculation)
            if "draft" in own:
                draft = str(own["draft"])
                method = read_head(checkpoints.find(draft)).method
                own = {"method": method, **own, "draft": shown_model(draft, folder)}
            variant["speculation"] = own
    settings = {"args": dict(serve.args), "env": dict(present.env)}
    variant["prefix_cache"] = serve.prefix_cache
    return variant | {key: value for key, value in settings.items() if value}


def _is_copy(serve: ServeCommand, target: ModelFacts, checkpoints: Checkpoints) -> bool:
    """Whether the command serves quantized weights of the target, and not the target itself."""
    path = checkpoints.find(str(serve.model), serve.revision)
    if str(path.resolve()) == target.path:
        return False
    weights = read_facts(path)
    if (difference := copy_difference(target, weights, "model that it serves")) is not None:
        raise UsageError(
            f"it serves another model than --model: {difference[1]}",
            fix="give the 16-bit checkpoint of the model that it serves as --model",
        )
    return weights.stored.scheme not in UNQUANTIZED


def shown_model(ref: str, folder: Path) -> str:
    """A checkpoint as the file names it: a path below its folder, or a hub id."""
    return relative(Path(ref), folder) if Path(ref).expanduser().is_dir() else ref


def relative(path: Path, folder: Path) -> str:
    """``path`` as a file in ``folder`` names it."""
    shown = os.path.relpath(path.expanduser().resolve(), folder)
    return shown if shown.startswith(".") else f"./{shown}"


def _content(text: str) -> tuple[str, bool]:
    """(the command's text or the file's, whether it is YAML)."""
    path = Path(os.path.expanduser(text))
    is_file = os.path.isfile(path)  # False too for a text that is too long for a path
    if (path.stat().st_size if is_file else len(text)) > _MOST_BYTES:
        raise UsageError("the present command is longer than 1 MiB", fix=_FIX)
    if not is_file and text.split() == [text]:
        raise UsageError(
            f"--current: no file at {text[:200]}", fix="correct the path, or give the line"
        )
    try:
        text = path.read_text(encoding="utf-8") if is_file else text
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text", fix=_FIX) from error
    return text, is_file and path.suffix in (".yaml", ".yml", ".json")


def _lines(text: str) -> Iterator[_Server]:
    """Yield the servers that shell text starts; variables that it exports count for all after.

    ``ValueError`` for an open quote.
    """
    plain = _UNREAD.sub(lambda match: match[1] or "", text.replace("\\\n", " "))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    exported: dict[str, str] = {}
    for is_end, command in groupby(lexer, lambda word: set(word) <= _ENDS):
        words = list(command)
        if words[0] == "export":
            exported |= _assignments(words)
        elif not is_end and (server := _serve(words)) is not None:
            yield server[0], {**exported, **server[1]}


def _serve(words: Sequence[str]) -> _Server | None:
    """Return the server that a command starts, in a container or a shell within it too."""
    for at, word in enumerate(words):
        name, after = PurePath(word).name, words[at + 1 : at + 2]
        env = _assignments(words[:at])
        if name == "vllm" and after == ["serve"]:
            return words[at + 2 :], env
        if word in _MODULES and words[at - 1] == "-m":
            return words[at + (2 if after == ["serve"] else 1) :], env
        if name in _SHELLS and after and re.fullmatch(r"-\w*c", after[0]):
            inner = next(_lines(" ".join(words[at + 2 : at + 3])), None)
            return inner and (inner[0], {**env, **inner[1]})
    for at, word in enumerate(words):
        if "run" in words[:at] and _IMAGE.fullmatch(word):  # the image serves what is behind it
            return words[at + 1 :], _assignments(words[:at])
    return None


def _services(text: str) -> Iterator[_Server]:
    """Yield the vLLM servers of a compose file or of Kubernetes manifests."""
    for node in _mappings(yaml_values(text)):
        keys = ("entrypoint", "command", "args")
        words = [word for key in keys for word in _words(node.get(key))]
        if not words or not isinstance(image := node.get("image"), str):
            continue
        if (server := _serve(["run", image, *words])) is not None:
            env = {**_env(node.get("environment")), **_env(node.get("env"))}
            yield server[0], {**env, **server[1]}


def _mappings(root: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield every mapping below ``root`` once, in its order, whatever aliases lead to it."""
    waiting, visited = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list) and id(node) not in visited:
            visited.add(id(node))
            waiting += reversed(list(node.values() if isinstance(node, dict) else node))
            if isinstance(node, dict):
                yield node


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value, comments=True)
    return [str(each) for each in value] if isinstance(value, list) else []


def _env(value: Any) -> dict[str, str]:
    """The variables of a service; one whose value is elsewhere has the value ``$``."""
    if isinstance(value, dict):
        value = [{"name": name, "value": "$" if x is None else x} for name, x in value.items()]
    return _assignments(
        f"{each.get('name')}={each.get('value', '$')}" if isinstance(each, dict) else str(each)
        for each in (value if isinstance(value, list) else ())
    )


def _assignments(words: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` words, also as an option of ``docker run``."""
    pairs = (word.removeprefix("--env=").partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals and is_env_name(name)}
