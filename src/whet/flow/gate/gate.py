"""``whet quality``: the gate outside of a run, against a server or a saved baseline.

The baseline is measured or read, then the target is asked the same questions and judged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.checkpoint import checkpoint_doubts, no_template
from whet.core.errors import MeasurementError, StorageError, UsageError
from whet.core.protocols import Observer
from whet.core.provenance import now
from whet.core.records.quality import QualityRecord, TaskScore
from whet.core.records.quality_checks import GateVerdict
from whet.core.spec import EngineSpec, QualitySpec
from whet.core.units import human_duration
from whet.data import is_built_in, write_inputs
from whet.flow.gate.endpoints import (
    ARRAYS,
    BASELINE,
    HELDOUT,
    INPUTS,
    TASKS,
    TOKENIZER,
    Candidate,
    Endpoint,
    LiveEndpoint,
    SavedBaseline,
    copy_arrays,
    find_candidate,
    find_tokenizer,
    read_baseline,
    refuse_filled,
    refuse_other_tokenizer,
    serve_candidate,
    write_baseline,
)
from whet.flow.gate.options import QualityOptions
from whet.quality import ChecksPlan, QualityPlan, measure_quality, tokens_needed
from whet.quality.asking import ModelEndpoint
from whet.quality.harness import HarnessRun, compare_harness, require_harness, run_harness
from whet.quality.verdicts import losses

TARGET: Final = "target"
"""The target's name in records and file names."""
_CONTINUATION_TOKENS: Final = 64
"""Tokens that the check of speculation writes after a prompt."""
_HARNESS_TOKENS: Final = 2048
"""Room for a prompt of lm-eval and its reply: the default of its client."""
_ORDER: Final = ("fail", "unknown", "pass")


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """The measured sides and the verdicts. ``baseline`` is None where the target is one itself.

    ``verdicts`` and ``reason`` are the record's with those of lm-eval's tasks. ``harness`` holds
    the scores of lm-eval, ``baseline_harness`` the baseline's. ``saved`` is the folder of the saved
    baseline.
    """

    target: Endpoint
    record: QualityRecord
    verdicts: tuple[tuple[float, GateVerdict], ...]
    reason: str | None
    baseline: Endpoint | None = None
    baseline_record: QualityRecord | None = None
    harness: tuple[TaskScore, ...] = ()
    baseline_harness: tuple[TaskScore, ...] = ()
    saved: str | None = None

    @property
    def verdict(self) -> GateVerdict:
        """The worst over all tolerances: fail, then unknown, then pass."""
        return min((word for _, word in self.verdicts), key=_ORDER.index)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """The questions and options, the same for both servers."""

    options: QualityOptions
    observer: Observer
    scratch: Path
    quality: QualitySpec
    tokenizer: Path
    heldout: Path
    tasks: Path


_Judgement = tuple[tuple[tuple[float, GateVerdict], ...], str | None]
"""The record's verdicts and reason, with defects of files and results of lm-eval."""


def run_gate(target_ref: str, options: QualityOptions, observer: Observer) -> GateResult:
    """Measure or read the baseline, measure the target, and judge.

    Raises ``UsageError`` for unusable input, ``EngineLostError`` if a server does not answer,
    ``EngineStartError`` if whet cannot serve a checkpoint, ``InfeasibleError`` for another
    tokenizer, and ``MeasurementError`` if the baseline itself is broken. A server that answers only
    in part leaves the verdict unknown, with the reason.
    """
    options.refuse_misfits()
    if options.save is not None:
        refuse_filled(options.save)
    if options.harness.tasks:
        require_harness()
    sides = options.sides
    observer.stage("reach", target_ref)
    target = find_candidate(target_ref, sides.model, flag="--model")
    with tempfile.TemporaryDirectory(prefix="whet-quality-") as scratch:
        if sides.against is not None:
            job, base = _open_saved(options, sides.against, observer, Path(scratch))
            return _judged(job, target, base)
        if sides.baseline is None:
            return _judged(_open_job(options, target, observer, Path(scratch)), target)
        candidate = find_candidate(sides.baseline, sides.baseline_model, flag="--baseline-model")
        job = _open_job(options, candidate, observer, Path(scratch))
        refuse_other_tokenizer(target, job.tokenizer)
        base, _, judged = _ask(job, candidate, BASELINE)
        if any(word == "fail" for _, word in judged[0]):
            raise MeasurementError(
                f"the baseline itself is broken: {judged[1]}", fix="fix it first"
            )
        return _judged(job, target, base, saved=_save(job, base, judged))


def _open_job(
    options: QualityOptions, candidate: Candidate, observer: Observer, scratch: Path
) -> _Job:
    """Return the questions of a baseline that is measured now."""
    quality, builtin = options.quality(), scratch / INPUTS
    for flag, path in (("--heldout", quality.heldout), ("--tasks", quality.tasks)):
        if path is not None and not path.is_file():
            raise UsageError(f"{flag}: no file at {path}", fix="correct the path or leave it out")
    tokenizer = find_tokenizer(options.sides.tokenizer, candidate)
    doubts = () if candidate.facts is None else checkpoint_doubts(candidate.facts)
    for sentence in (*doubts, *no_template(tokenizer)):
        observer.warn(sentence)
    if quality.heldout is None or quality.tasks is None:
        write_inputs(builtin)
    return _Job(
        options=options,
        observer=observer,
        scratch=scratch,
        quality=quality,
        tokenizer=tokenizer,
        heldout=quality.heldout or builtin / HELDOUT,
        tasks=quality.tasks or builtin / TASKS,
    )


def _open_saved(
    options: QualityOptions, folder: Path, observer: Observer, scratch: Path
) -> tuple[_Job, SavedBaseline]:
    """Read a saved baseline and its questions; only the concurrency comes from ``options``."""
    saved = read_baseline(folder)
    if options.sides.speculative and saved.plain is None:
        raise UsageError(
            f"{folder} holds no answers for --speculative",
            fix="save the baseline again with --speculative",
        )
    if options.harness.tasks and saved.harness is None:
        raise UsageError(
            f"{folder} holds no lm-eval run", fix="save the baseline again with the same --lm-eval"
        )
    copy_arrays(folder, scratch)
    try:
        quality = QualitySpec(**{**saved.quality, "concurrency": options.measure.concurrency})
    except ValueError as error:
        raise StorageError(
            f"{folder} has options of another version of whet", fix="measure the baseline again"
        ) from error
    job = _Job(
        options=options,
        observer=observer,
        scratch=scratch,
        quality=quality,
        tokenizer=folder / TOKENIZER,
        heldout=folder / INPUTS / HELDOUT,
        tasks=folder / INPUTS / TASKS,
    )
    observer.note(f"baseline {saved.side.ref}, saved {saved.taken_at}")
    return job, saved


def _ask(
    job: _Job, candidate: Candidate, name: str, base: SavedBaseline | None = None
) -> tuple[SavedBaseline, tuple[TaskScore, ...], _Judgement]:
    """Ask one side everything, and judge it by ``base``, None for the baseline itself."""
    before = None if base is None else base.harness
    with _serve(job, candidate, name) as server:
        plan = _plan(job, name, server.side, base)
        measured = measure_quality(server.url, server.side.model, plan, observer=job.observer)
        server.ensure_alive()
        job.observer.note(f"{name} measured in {human_duration(measured.record.seconds)}")
        run = _harness(job, server, name, before)
        server.ensure_alive()
    scores, gaps = _scores(run, before)
    broken = [*candidate.defects, *(f"lm-eval: {each}" for each in losses(scores))]
    side = SavedBaseline(
        taken_at=now(),
        side=server.side,
        quality=job.quality.model_dump(mode="json", exclude={"heldout", "tasks"}),
        record=measured.record,
        plain=measured.plain,
        harness=run,
    )
    return side, scores, _judge(side.record, broken, gaps)


def _save(job: _Job, base: SavedBaseline, judged: _Judgement) -> str | None:
    """Write the baseline's folder if requested and if the baseline passes."""
    folder = job.options.save
    if folder is None:
        return None
    if any(word != "pass" for _, word in judged[0]):
        job.observer.warn(f"the baseline is not saved: {judged[1]}")
        return None
    inputs = {HELDOUT: job.heldout, TASKS: job.tasks}
    write_baseline(folder, base, scratch=job.scratch, tokenizer=job.tokenizer, inputs=inputs)
    return str(folder)


def _judged(
    job: _Job, target: Candidate, base: SavedBaseline | None = None, *, saved: str | None = None
) -> GateResult:
    """Ask the target the questions of ``base``; without one the target is itself the baseline."""
    if base is not None:
        refuse_other_tokenizer(target, job.tokenizer)
    side, scores, judged = _ask(job, target, BASELINE if base is None else TARGET, base)
    return GateResult(
        target=side.side,
        record=side.record,
        verdicts=judged[0],
        reason=judged[1],
        baseline=None if base is None else base.side,
        baseline_record=None if base is None else base.record,
        harness=scores,
        baseline_harness=_scores(base.harness, side.harness)[0] if base and scores else (),
        saved=_save(job, side, judged) if base is None else saved,
    )


def _judge(record: QualityRecord, broken: Sequence[str], missing: Sequence[str]) -> _Judgement:
    """Fail every tolerance for a defect or a loss; a gap turns a pass into unknown."""
    verdicts: tuple[tuple[float, GateVerdict], ...] = tuple(
        (tolerance, "fail" if broken else "unknown" if missing and word == "pass" else word)
        for tolerance, word in record.verdicts
    )
    reasons = [*broken, *([record.reason] if record.reason else []), *missing]
    return verdicts, "; ".join(reasons) or None


def _serve(job: _Job, candidate: Candidate, name: str) -> AbstractContextManager[LiveEndpoint]:
    """The side as a running server with room for every question."""
    tokens = 0
    if candidate.url is None:
        tokens = tokens_needed(_plan(job, name, None)) + _CONTINUATION_TOKENS
        if job.options.harness.tasks:
            tokens = max(tokens, _HARNESS_TOKENS)
    job.observer.stage("serve" if candidate.url is None else "ask", f"{name}: {candidate.ref}")
    log = job.scratch / f"{name}.log"
    return serve_candidate(candidate, tokens=tokens, spec=EngineSpec(), log=log)


def _plan(
    job: _Job, name: str, side: Endpoint | None, base: SavedBaseline | None = None
) -> QualityPlan:
    """Return the plan of one server; without ``side`` only to get its longest request."""
    return QualityPlan(
        variant=name,
        tokenizer=job.tokenizer,
        spec=job.quality,
        heldout=job.heldout,
        tasks=job.tasks,
        baseline=None if base is None else base.record,
        tolerances=job.options.tolerances,
        arrays=job.scratch / ARRAYS if side is not None else None,
        checks=None if side is None else _checks(job, side, base),
        built_in_text=is_built_in(job.heldout, "heldout"),
    )


def _checks(job: _Job, side: Endpoint, base: SavedBaseline | None) -> ChecksPlan:
    speculative = job.options.sides.speculative
    reference = base if base is not None and (speculative or side.computes_as(base.side)) else None
    return ChecksPlan(
        golden=None,
        same_weights_reference=None if reference is None else reference.record,
        plain=base.plain if base is not None and speculative else None,
        is_plain=base is None and speculative,
        other_kernels=base is not None and None in (side.settings, base.side.settings),
    )


def _harness(
    job: _Job, server: LiveEndpoint, name: str, base: HarnessRun | None
) -> HarnessRun | None:
    """Run the tasks of lm-eval if there are any; the target's prompts are as long as the base's."""
    options = job.options.harness
    if not options.tasks:
        return None
    job.observer.note(f"{name}: lm-eval {', '.join(options.tasks)}")
    length = server.max_length if base is None else base.max_length
    return run_harness(
        ModelEndpoint(url=server.url, model=server.side.model, concurrency=job.quality.concurrency),
        options.tasks,
        options.words,
        tokenizer=job.tokenizer,
        max_length=length or _HARNESS_TOKENS,
    )


def _scores(
    run: HarnessRun | None, base: HarnessRun | None = None
) -> tuple[tuple[TaskScore, ...], list[str]]:
    """Return the scores of lm-eval, and a sentence per gap."""
    if run is None:
        return (), []
    scores, gaps = compare_harness(run, base)
    return scores, [f"lm-eval: {each}" for each in gaps]
