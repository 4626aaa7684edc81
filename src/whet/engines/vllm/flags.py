"""The engine flags of a spec, checked, and the command with hub ids for any machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources

from whet.core.errors import UsageError
from whet.core.hub import snapshot_of
from whet.core.names import did_you_mean
from whet.core.records.engine import Scalar
from whet.engines.command import all_words, ask_python, refuse_owned

_ASK_TIMEOUT_S = 180.0
_ASK = """
import json, os
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
try:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
words = [word for action in parser._actions for word in action.option_strings]
print("ANSWER=" + json.dumps([word[2:] for word in words if word.startswith("--")]))
"""


@cache
def shipped_flags() -> frozenset[str]:
    """The flags of the vLLM that this was written against, without the leading dashes."""
    text = resources.files("whet.engines.vllm").joinpath("flags.txt").read_text(encoding="utf-8")
    flags: set[str] = set()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = line.removeprefix("+")
            flags |= {name, f"no-{name}"} if line.startswith("+") else {name}
    return frozenset(flags)


@cache
def installed_flags(python: str) -> frozenset[str]:
    """The flags of the engine's own parser; empty if it does not run. Takes about 10 s."""
    env = {"VLLM_NO_USAGE_STATS": "1"}
    answer = ask_python(python, _ASK, timeout_s=_ASK_TIMEOUT_S, env=env)
    return frozenset() if answer is None else frozenset(json.loads(answer))


def flag_words(args: Iterable[tuple[str, Scalar]], *, python: str) -> list[str]:
    """``(("max_model_len", 512), ("enforce_eager", True))`` → command-line words.

    The installed engine is asked only about a flag that the shipped list does not have. Raises
    ``UsageError`` for an unknown flag, one that whet sets itself, and a switch that has no "off".
    """

    def words_of(key: str, value: Scalar) -> list[str]:
        name = _known_name(key, python)
        if value is False:
            return _off(key, name, python)
        return [f"--{name}"] if value is True else [f"--{name}", str(value)]

    return all_words(args, words_of)


def adapter_word(name: str, path: str) -> str:
    """``name=path``; vLLM takes a word with a comma for JSON."""
    return json.dumps({"name": name, "path": path}) if "," in path else f"{name}={path}"


def _known_name(key: str, python: str) -> str:
    plain = key.lstrip("-").replace("-", "_")
    refuse_owned("vllm", key, plain)
    name = plain.replace("_", "-")
    if name in shipped_flags() or name in installed_flags(python):
        return name
    known = [flag.replace("-", "_") for flag in installed_flags(python) or shipped_flags()]
    near = did_you_mean(plain, known)
    raise UsageError(
        f"vLLM has no flag {key!r}{near or '; correct engine.args or the args of the variant'}"
    )


def _off(key: str, name: str, python: str) -> list[str]:
    off = f"no-{name}"
    if off in shipped_flags() or off in installed_flags(python):
        return [f"--{off}"]
    raise UsageError(
        f"engine flag {key!r} cannot be switched off", fix="leave it out instead of false"
    )


def by_hub_id(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command with every folder of the hub's cache as vLLM names it on another machine.

    The model and a draft get their commit too; vLLM takes no revision for an adapter.
    """
    return tuple(_words(argv))


def _words(argv: tuple[str, ...]) -> Iterator[str]:
    flag = ""
    for word in argv:
        if word.startswith("--") or word == "serve":
            flag = word
            yield word
        elif flag in ("--model", "serve") and (snapshot := snapshot_of(word)):
            yield from (snapshot.hub_id, "--revision", snapshot.commit)
        elif flag == "--speculative-config":
            yield _speculative_config(word)
        elif flag == "--lora-modules":
            yield _adapter(word)
        else:
            yield word


def _speculative_config(text: str) -> str:
    config = json.loads(text)
    snapshot = snapshot_of(config.get("model", ""))
    if snapshot is None:
        return text
    return json.dumps(config | {"model": snapshot.hub_id, "revision": snapshot.commit})


def _adapter(word: str) -> str:
    """``name=path``, or JSON where the path has a comma, which no path of the cache has."""
    name, _, path = word.partition("=")
    snapshot = None if word.startswith("{") else snapshot_of(path)
    return word if snapshot is None else f"{name}={snapshot.hub_id}"
