"""The two sides of a gate: a server that somebody runs, or a checkpoint that whet serves itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import locate, read_facts, serving_difference
from whet.checkpoint.kv_scales import kv_scales_problem
from whet.client import HttpError, get_text
from whet.core.errors import (
    EngineStartError,
    InfeasibleError,
    MeasurementError,
    UsageError,
)
from whet.core.protocols import Engine
from whet.core.records import ModelFacts, ResolvedEngine
from whet.core.server_url import split_server_url
from whet.core.spec import EngineSpec
from whet.flow.gate.baseline import Side
from whet.flow.quantize.serve_check import (
    CannotServe,
    Serving,
    engine_title,
    release_models,
    resolve_serving,
)

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_BARE_URL: Final = re.compile(r"[\w.-]+:\d+(/.*)?")
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A side before it is asked. ``url`` is None for a checkpoint, which is then in ``facts``.

    ``tokenizer`` is the folder of its tokenizer where that is here.
    """

    ref: str
    url: str | None
    model: str | None
    engine_version: str | None
    tokenizer: Path | None
    facts: ModelFacts | None

    @property
    def defects(self) -> tuple[str, ...]:
        """What is wrong with the checkpoint's files, whatever the server then says."""
        problem = None if self.facts is None else kv_scales_problem(Path(self.facts.path))
        return () if problem is None else (problem,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A side that answers at ``url``; ``ensure_alive`` raises where whet's own server ended."""

    url: str
    side: Side
    ensure_alive: Callable[[], None]


def find_subject(ref: str, model: str | None, *, flag: str) -> Subject:
    """Reach the server, or read the checkpoint; nothing is started. ``flag`` names its model.

    Raises ``EngineLostError`` for a server that does not answer, ``UsageError`` for a model that it
    lacks, ``CheckpointError`` for a folder that holds none.
    """
    if _URL.match(ref) is None:
        if _BARE_URL.fullmatch(ref) and not Path(ref).exists():
            raise UsageError(f"{ref} is no folder; for a server write http://{ref}")
        facts = read_facts(locate(ref))
        if model is not None:
            raise UsageError(f"{flag} names a server's model, and {ref} is a folder; leave it out")
        return Subject(
            ref=ref,
            url=None,
            model=None,
            engine_version=None,
            tokenizer=Path(facts.path),
            facts=facts,
        )
    split_server_url(ref)
    entry = _entry(ref, model, flag)
    root = entry.get("root")
    here = isinstance(root, str) and (Path(root) / "tokenizer.json").is_file()
    return Subject(
        ref=ref,
        url=ref,
        model=str(entry["id"]),
        engine_version=_version(ref),
        tokenizer=Path(str(root)) if here else None,
        facts=None,
    )


def find_tokenizer(given: str | None, subject: Subject) -> Path:
    """The folder that makes every prompt; ``UsageError`` where it is not here."""
    if given is not None:
        return locate(given)
    if subject.tokenizer is None:
        raise UsageError(
            f"prompts are made by the baseline's own tokenizer, and {subject.ref} names none that "
            "is here; give its folder or hub id with --tokenizer"
        )
    return subject.tokenizer


def refuse_other_tokenizer(subject: Subject, baseline: Path) -> None:
    """``InfeasibleError`` where the target's files make other tokens than the baseline's.

    A tokenizer that is not here is compared by what its server answers.
    """
    if subject.tokenizer is None or subject.tokenizer.resolve() == baseline.resolve():
        return
    problem = serving_difference(baseline, subject.tokenizer, names=("baseline", "target"))
    if problem is not None:
        raise InfeasibleError(
            f"{subject.ref} has another tokenizer than the baseline: {problem}; fix it, or hold "
            "it to a baseline of its own"
        )


@contextmanager
def running(subject: Subject, *, tokens: int, spec: EngineSpec, log: Path) -> Iterator[Running]:
    """The side as a server: somebody's own, or one of whet's that holds ``tokens`` a request.

    Raises ``EngineStartError`` where no engine is installed, or it cannot serve the checkpoint.
    """
    if subject.url is not None:
        side = Side(
            ref=subject.ref, model=str(subject.model), engine_version=subject.engine_version
        )
        yield Running(url=subject.url, side=side, ensure_alive=lambda: None)
        return
    assert subject.facts is not None
    engine, resolved = _resolve(subject.facts, tokens, spec)
    release_models()
    with engine.serve(resolved, log=log) as server:
        side = Side(
            ref=subject.ref,
            model=server.model_name,
            engine_version=resolved.engine_version,
            weights_sha256=subject.facts.weights_sha256,
            settings=_settings(resolved),
            scheme=subject.facts.stored.scheme,
        )
        yield Running(url=server.base_url, side=side, ensure_alive=server.ensure_alive)


def _resolve(facts: ModelFacts, tokens: int, spec: EngineSpec) -> tuple[Engine, ResolvedEngine]:
    serving = Serving(
        name=Path(facts.path).name,
        path=Path(facts.path),
        recipe=None,
        max_model_len=min(tokens, facts.max_position),
    )
    try:
        engine, plain = resolve_serving(serving, spec)
        # A recipe is not known here; what is stored is, and kernels are chosen by it.
        resolved = engine.resolve(replace(plain.variant, scheme=facts.stored.scheme), spec)
        reason = engine.unsupported(resolved)
    except CannotServe as error:
        raise EngineStartError(
            f"{facts.path} cannot be served here: {error}; or give a running server's URL"
        ) from error
    if reason is not None:
        raise EngineStartError(f"{facts.path} cannot be served here: {reason}")
    return engine, resolved


def _settings(resolved: ResolvedEngine) -> str:
    """All that could change a figure; the longest request does not."""
    args = {k: v for k, v in resolved.variant.engine_args if k != "max_model_len"}
    words = [f"{key}={args[key]}" for key in sorted(args)]
    return " ".join([engine_title(resolved), *words])


def _entry(url: str, model: str | None, flag: str) -> dict[str, Any]:
    """What ``/v1/models`` says of the model asked for, or of the only one."""
    try:
        told = json.loads(get_text(url, "/v1/models"))
        entries = [item for item in told["data"] if isinstance(item, dict) and "id" in item]
    except HttpError as error:
        if error.status == _UNAUTHORIZED:
            raise UsageError(
                f"{url} refuses the key (401); put the right one into OPENAI_API_KEY"
            ) from error
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(
            f"{url}/v1/models is no list of models; check that it is an OpenAI-compatible server"
        ) from error
    names = [str(item["id"]) for item in entries]
    if model is None and len(names) == 1:
        return entries[0]
    found = [item for item in entries if item["id"] == model]
    if found:
        return found[0]
    wanted = f"no model {model!r}" if model is not None else f"{len(names)} models"
    raise UsageError(
        f"{url} has {wanted}; choose one with {flag}: {', '.join(names) or 'it has none'}"
    )


def _version(url: str) -> str | None:
    try:
        found = json.loads(get_text(url, "/version")).get("version")
    except (HttpError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
