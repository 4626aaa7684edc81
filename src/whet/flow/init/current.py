"""The user's present command: shell text, a compose file or a Kubernetes manifest → its words.

Nothing of it is run or expanded.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from whet.checkpoint import weights_facts
from whet.checkpoint.heads import read_head
from whet.core.errors import UsageError
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.model import ModelFacts
from whet.core.redact import is_env_name, public_env
from whet.engines.vllm.serve_line import ServeCommand, read_serve_words
from whet.flow.run.check.checkpoints import Checkpoints
from whet.predict.feasibility import copy_difference

_MOST_BYTES: Final = 1 << 20
_DEEPEST: Final = 30
_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_SHELLS: Final = ("sh", "bash")
_ENDS: Final = frozenset(";&|<>()\n")
"""Characters that end a command, or its words, in a shell."""
_IMAGE: Final = re.compile(r"(?:^|/)[\w.-]*vllm[\w.-]*(?:/[\w.-]+)*(?:[:@][\w.:-]+)?$")
_SWITCHES: Final = frozenset(
    {"-d", "--detach", "--rm", "-i", "-t", "-it", "-ti", "-dit", "-itd", "--privileged", "--init"}
    | {"-P", "--publish-all", "--read-only", "--interactive", "--tty", "-q", "--quiet"}
)
"""Options of ``docker run`` without a value."""
_ENGINE_ENV: Final = (
    "VLLM_", "NCCL_", "OMP_", "TORCH", "PYTORCH_", "FLASHINFER_", "TRITON_", "CUDA_MODULE_",
    "CUDA_DEVICE_MAX_",
)  # fmt: skip
_FIX: Final = "give the line that starts vLLM (vllm serve MODEL …), or a file that holds one"


@dataclass(frozen=True, kw_only=True, slots=True)
class PresentCommand:
    """What the user serves now; ``left_out`` are flags and variables that a spec does not take."""

    serve: ServeCommand
    env: Mapping[str, str]
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Server:
    """The words behind ``vllm serve``, with the variables that are set for it."""

    words: Sequence[str]
    env: Mapping[str, str]


def read_current(text: str) -> PresentCommand:
    """Read a command, or the file that ``text`` names.

    Raises ``UsageError`` where it holds no vLLM server, or several, or cannot be read.
    """
    text, is_yaml = _content(text)
    try:
        matches = list(_services(text) if is_yaml else _lines(text))
        serves = [read_serve_words(match.words) for match in matches]
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UsageError(f"the present command cannot be read ({reason})", fix=_FIX) from error
    if not matches:
        raise UsageError("the present command starts no vLLM server", fix=_FIX)
    if len(matches) > 1:
        raise UsageError(
            f"the present command starts {len(matches)} vLLM servers", fix="give one of them"
        )
    serve, given = serves[0], matches[0].env
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
    variant["prefix_cache"] = serve.prefix_cache
    return variant | {key: dict(value) for key, value in _settings(present) if value}


def _settings(present: PresentCommand) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "args", present.serve.args
    yield "env", present.env


def _is_copy(serve: ServeCommand, target: ModelFacts, checkpoints: Checkpoints) -> bool:
    """Whether the command serves quantized weights of the target, and not the target itself."""
    path = checkpoints.find(str(serve.model), serve.revision)
    if str(path.resolve()) == target.path:
        return False
    weights = weights_facts(path, target)
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
    if len(text) > _MOST_BYTES:
        raise UsageError("the present command is longer than 1 MiB", fix=_FIX)
    path = Path(os.path.expanduser(text))
    if not os.path.isfile(path):  # False too for a text that is too long for a path
        if text.split() != [text]:
            return text, False
        raise UsageError(
            f"--current: no file at {text[:200]}", fix="correct the path, or give the line"
        )
    if path.stat().st_size > _MOST_BYTES:
        raise UsageError(f"{path} is larger than 1 MiB", fix=_FIX)
    try:
        return path.read_text(encoding="utf-8"), path.suffix in (".yaml", ".yml", ".json")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text", fix=_FIX) from error


def _lines(text: str) -> Iterator[_Server]:
    """Yield the servers that shell text starts; variables that it exports count for all after."""
    exported: dict[str, str] = {}
    for command in _commands(text):
        if command[:1] == ["export"]:
            exported |= _assignments(command)
        elif (server := _serve(command)) is not None:
            yield _Server(words=server.words, env={**exported, **server.env})


def _commands(text: str) -> Iterator[list[str]]:
    """Split text into commands at line ends and operators; ``ValueError`` for an open quote."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    hidden = False  # behind a comment sign or a redirection, until the command ends
    for word in lexer:
        if set(word) <= _ENDS:
            if set(word) <= {"<", ">"}:
                hidden = True
                continue
            yield command
            command, hidden = [], False
        elif word.startswith("#"):
            hidden = True
        elif not hidden:
            command.append(word)
    yield command


def _serve(words: Sequence[str], image: str = "") -> _Server | None:
    """Return the server that one command starts; of an ``image`` of vLLM the words are its flags"""
    for at, word in enumerate(words):
        name, after = PurePath(word).name, words[at + 1 : at + 2]
        before = _assignments(words[:at])
        if (name == "vllm" and after == ["serve"]) or (
            word == "-m" and after[:1] and after[0] in _MODULES
        ):
            start = at + 3 if words[at + 2 : at + 3] == ["serve"] else at + 2
            return _Server(words=words[start:], env=before)
        if name in _CONTAINERS and "run" in words[at + 1 : at + 3]:
            return _container(words[words.index("run", at) + 1 :], before)
        if name in _SHELLS and after and re.fullmatch(r"-\w*c", after[0]):
            inner = next(_lines(" ".join(words[at + 2 : at + 3])), None)
            return inner and _Server(words=inner.words, env={**before, **inner.env})
    return _Server(words=words, env={}) if _IMAGE.search(image) else None


def _container(words: Sequence[str], env: Mapping[str, str]) -> _Server | None:
    """Return the server of ``docker run``: its options, the image, and what the image is given."""
    given: dict[str, str] = dict(env)
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if not equals and option not in _SWITCHES and rest:
            value = rest.pop(0)
        if option in ("-e", "--env"):
            given |= _assignments([value if "=" in value else f"{value}=$"])
    server = _serve(rest[1:], rest[0]) if rest else None
    return server and _Server(words=server.words, env={**given, **server.env})


def _services(text: str) -> Iterator[_Server]:
    """Yield the vLLM servers of a compose file or of Kubernetes manifests."""
    for node in _mappings(list(yaml.safe_load_all(text)), set(), 0):
        keys = ("entrypoint", "command", "args")
        words = [word for key in keys for word in _words(node.get(key))]
        if not isinstance(node.get("image"), str) or not words:
            continue
        if (server := _serve(words, node["image"])) is not None:
            env = {**_env(node.get("environment")), **_env(node.get("env"))}
            yield _Server(words=server.words, env={**env, **server.env})


def _mappings(node: Any, visited: set[int], depth: int) -> Iterator[Mapping[Any, Any]]:
    """Yield every mapping below ``node`` once, whatever aliases lead to it."""
    if id(node) in visited or depth > _DEEPEST or not isinstance(node, dict | list):
        return
    visited.add(id(node))
    if isinstance(node, dict):
        yield node
    for inside in node.values() if isinstance(node, dict) else node:
        yield from _mappings(inside, visited, depth + 1)


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value, comments=True)
    return [str(each) for each in value] if isinstance(value, list) else []


def _env(value: Any) -> dict[str, str]:
    """The variables of a service; one whose value is elsewhere has the value ``$``."""
    if isinstance(value, dict):
        return {str(name): "$" if text is None else str(text) for name, text in value.items()}
    env: dict[str, str] = {}
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict):
            env[str(each.get("name"))] = str(each.get("value", "$"))
        else:
            env |= _assignments([each if "=" in str(each) else f"{each}=$"])
    return env


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` words."""
    pairs = (str(word).partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals and is_env_name(name)}
