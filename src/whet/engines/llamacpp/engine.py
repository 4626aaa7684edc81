"""llama.cpp's ``llama-server``: a GGUF file on a CPU or a GPU, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from threading import Event
from typing import Final

from whet.core.errors import EngineStartError, UsageError
from whet.core.llama_cpp import find_program
from whet.core.names import did_you_mean
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine, Scalar, Speculation, Variant
from whet.core.spec import EngineSpec
from whet.engines.command import all_words, ambient_env, refuse_owned, shell_line, vllm_alone
from whet.engines.launch import serve_process
from whet.engines.llamacpp.pages import require_same_ids

PROGRAM: Final = "llama-server"
_STEP: Final = 256
SLOTS: Final = 8
"""Requests in flight where ``max_num_seqs`` is not set; further ones wait."""
_VERSION: Final = re.compile(
    r"version: (?:\S+ \(build (\d+), commit (\w+)\)|(\d+) \((\w+)\))"  # newer, older
)
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_COMMON: Final = {"max_num_batched_tokens": "batch-size"}
"""Names that all engines share, and llama-server's own."""
_SIZES: Final = ("max_model_len", "max_num_seqs")
SPEC_TYPES: Final = {"draft_model": "draft-simple", "ngram": "ngram-simple"}
_COUNTS: Final = {"draft_model": "--spec-draft-n-max", "ngram": "--spec-ngram-simple-size-m"}
_NGRAM: Final = 5
"""Tokens that must repeat before a draft is made, as whet sets it on vLLM; at most K, because
llama-server makes no draft that is shorter than the match."""
_NEUTRAL: Final = {"temp": "1.0", "top_k": "0", "top_p": "1.0", "min_p": "0.0"}
"""Sampling where a request does not set it: the model's own distribution, as on vLLM."""
_VERBOSITY: Final = "4"
"""``trace``: from here on the log shows the tensors by type, and what drafts."""
_LIMIT_S: Final = 30.0


class LlamaCppEngine:
    """llama-server behind ``core.protocols.Engine``."""

    name = "llamacpp"

    def version(self, spec: EngineSpec) -> str:
        """``b7312 (4a1c9f3)``; ``EngineStartError`` with the fix where there is no llama-server."""
        return _version(_program(spec))

    def resolve(self, variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        """Every flag; ``UsageError`` for one that this llama-server does not have."""
        program = _program(spec)
        name = _name(variant.model_path)
        model = ("--model", variant.model_path, "--alias", name)
        listen = ("--host", "127.0.0.1", "--port", "{port}", "--metrics")
        argv = (program, *model, *listen, "--offline", *_words(variant, program))
        env = tuple(sorted({**ambient_env(("LLAMA_",), (), {}), **dict(variant.env)}.items()))
        return ResolvedEngine(
            variant=variant,
            engine=self.name,
            engine_version=_version(program),
            device="cpu",
            served_model_name=name,
            argv=argv,
            env=env,
            serve_line=shell_line(argv, env, port=8080),
            ready_timeout_s=spec.ready_timeout_s,
        )

    def unsupported(self, resolved: ResolvedEngine) -> str | None:
        """What llama-server does not serve, or whet does not set up on it."""
        variant = resolved.variant
        if not variant.model_path.endswith(".gguf"):
            return (
                f"llama.cpp serves GGUF files, and these weights are {variant.scheme}; make a file "
                "with llama.cpp's tools and set weights: ./file.gguf"
            )
        no_draft = None if variant.speculation is None else _no_speculation(variant.speculation)
        return vllm_alone(variant) or no_draft

    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
    ) -> AbstractContextManager[Server]:
        """Start it, wait for the canary, compare its tokenizer, reap the tree whatever happens."""
        return _serve(resolved, log, stop)


@contextmanager
def _serve(resolved: ResolvedEngine, log: Path, stop: Event | None) -> Iterator[Server]:
    with serve_process(resolved, log=log, stop=stop) as server:
        require_same_ids(server.base_url, Path(resolved.variant.model_path).parent)
        yield server


def _no_speculation(speculation: Speculation) -> str | None:
    method = speculation.method
    if method not in SPEC_TYPES:
        return f"whet sets up {' and '.join(SPEC_TYPES)} on llama.cpp; {method} needs vLLM"
    if speculation.options:
        names = ", ".join(name for name, _ in speculation.options)
        return f"llama.cpp has no speculation option {names}; leave it out"
    path = speculation.draft_path
    if path is not None and not path.endswith(".gguf"):
        return (
            f"llama.cpp drafts with a GGUF file, and {path} is another form; make one with "
            "llama.cpp's tools and set speculation.draft to it"
        )
    return None


def _program(spec: EngineSpec) -> str:
    """The llama-server that the spec names, or the one that is installed."""
    if spec.program is None:
        try:
            return str(find_program(PROGRAM))
        except UsageError as error:
            raise EngineStartError(str(error)) from error
    program = shutil.which(str(spec.program))
    if program is None:
        raise EngineStartError(
            f"no program at {spec.program}",
            fix=f"correct program, or leave it out to take the {PROGRAM} on PATH",
        )
    return program


@cache
def _ask(program: str, flag: str) -> str:
    try:
        done = subprocess.run(
            [program, flag],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise EngineStartError(
            f"{program} cannot be started ({reason})", fix="build it again"
        ) from error
    return done.stdout


def _version(program: str) -> str:
    match = _VERSION.search(_ask(program, "--version"))
    if match is None:
        raise EngineStartError(f"{program} does not say its version", fix="is it llama-server?")
    return f"b{match[1] or match[3]} ({match[2] or match[4]})"


def known_flags(program: str) -> frozenset[str]:
    """The long flags of this llama-server, with underscores and without dashes."""
    words = _FLAG.findall(_ask(program, "--help"))
    return frozenset(word.removeprefix("--").replace("-", "_") for word in words)


def _words(variant: Variant, program: str) -> list[str]:
    args = {key.lstrip("-").replace("-", "_"): value for key, value in variant.engine_args}
    slots, length = int(args.get("max_num_seqs", SLOTS)), args.get("max_model_len")
    if length is not None and int(length) % _STEP:
        raise UsageError(
            f"llama.cpp's context of a request is a multiple of {_STEP}",
            fix=f"set max_model_len to "
            f"{-(-int(length) // _STEP) * _STEP} in the args of this engine",
        )
    words = ["--parallel", str(slots), "--verbosity", _VERBOSITY, "--log-colors", "off"]
    if length is None:  # all requests share the context that the model was made for
        words += ["--ctx-size", "0", "--kv-unified"]
    else:
        words += ["--ctx-size", str(int(length) * slots), "--no-kv-unified"]
    off = ["--no-cache-prompt", "--cache-ram", "0"]
    words += ["--cache-prompt"] if variant.prefix_cache else off
    words += [
        word
        for name, value in _NEUTRAL.items()
        if name not in args
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    if "threads" not in args:  # its own default leaves out the second thread of each core
        words += ["--threads", str(len(os.sched_getaffinity(0)))]
    if variant.speculation is not None:
        words += _speculation_words(variant.speculation)
    return words + _flag_words({k: v for k, v in args.items() if k not in _SIZES}, program)


def _speculation_words(speculation: Speculation) -> list[str]:
    if speculation.method not in SPEC_TYPES:  # ``unsupported`` says so
        return []
    words = ["--spec-type", SPEC_TYPES[speculation.method]]
    words += [_COUNTS[speculation.method], str(speculation.num_tokens)]
    if speculation.method == "ngram":
        words += ["--spec-ngram-simple-size-n", str(min(_NGRAM, speculation.num_tokens))]
    if speculation.draft_path is not None:
        words += ["--spec-draft-model", speculation.draft_path]
    return words


def _flag_words(args: dict[str, Scalar], program: str) -> list[str]:
    """Plain flags, each checked against what this llama-server has."""
    known = known_flags(program)

    def words_of(key: str, value: Scalar) -> list[str]:
        name = _COMMON.get(key, key).replace("-", "_")
        negative = f"no_{name}"
        refuse_owned("llamacpp", key, name)
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"llama-server has no flag {key!r}{near or '; correct args'}")
        if value is False and negative not in known:
            raise UsageError(f"engine flag {key!r} cannot be switched off", fix="leave it out")
        flag = f"--{(negative if value is False else name).replace('_', '-')}"
        return [flag] if isinstance(value, bool) else [flag, str(value)]

    return all_words(args.items(), words_of)


def _name(path: str) -> str:
    """The folder's name, or the file's without its ending."""
    return Path(path).stem if path.endswith(".gguf") else Path(path).name
