"""From lm-evaluation-harness's results to records, and the files that keep them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from whet.core.errors import StorageError
from whet.core.records import (
    Estimate,
    HarnessMetric,
    HarnessRun,
    HarnessSample,
    HarnessTask,
    decode,
    encode,
)
from whet.core.store import write_atomic, write_json
from whet.quality.paired import wilson

RECORD: Final = "harness.json"
SAMPLES: Final = "harness_samples.jsonl"
_PROMPT_CHARS: Final = 400
_CONFIDENCE: Final = 0.95
_SAME: Final = 1e-9
_LIKELIHOOD_PAIR: Final = 2

Results = Mapping[str, Any]
"""What ``lm_eval.simple_evaluate`` returns."""


def read_samples(results: Results) -> tuple[HarnessSample, ...]:
    """Every logged sample, by task and then as the harness ordered them."""
    logged: Mapping[str, Sequence[Mapping[str, Any]]] = results.get("samples") or {}
    return tuple(_sample(task, one) for task in sorted(logged) for one in logged[task])


def read_tasks(
    asked: str, results: Results, samples: Sequence[HarnessSample]
) -> tuple[HarnessTask, ...]:
    """The figures of the tasks that ``asked`` stood for; a group's own come first."""
    leaves = tuple(_leaf(asked, task, results, samples) for task in sorted(results["samples"]))
    groups: Mapping[str, Mapping[str, Any]] = results.get("groups") or {}
    return (*(_group(asked, name, results, leaves) for name in groups), *leaves)


def _sample(task: str, logged: Mapping[str, Any]) -> HarnessSample:
    answers = logged["filtered_resps"]
    arguments = logged["arguments"]
    return HarnessSample(
        task=task,
        filter=str(logged["filter"]),
        doc_id=int(logged["doc_id"]),
        doc_hash=str(logged["doc_hash"]),
        prompt_hash=str(logged["prompt_hash"]),
        metrics=tuple(
            (name, value)
            for name in logged["metrics"]
            if (value := _number(logged[name])) is not None
        ),
        target=_text(logged["target"]),
        response=answers[0]
        if len(answers) == 1 and isinstance(answers[0], str)
        else _text(answers),
        prompt_end=str(arguments[0][0])[-_PROMPT_CHARS:] if arguments else "",
    )


def _number(value: object) -> float | None:
    """A metric of one sample, None where it is no single number (a reference and an answer, …)."""
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
    return float(plain) if isinstance(plain, bool | int | float) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _leaf(asked: str, task: str, results: Results, samples: Sequence[HarnessSample]) -> HarnessTask:
    own = [sample for sample in samples if sample.task == task]
    counts = results["n-samples"][task]
    version = results["versions"].get(task)
    return HarnessTask(
        asked=asked,
        task=task,
        version=None if version is None else str(version),
        output_type=results["configs"][task].get("output_type"),
        num_fewshot=results["n-shot"].get(task),
        samples=int(counts["effective"]),
        available=int(counts["original"]),
        metrics=_metrics(results["results"][task], results["higher_is_better"].get(task, {}), own),
        broken=sum(_is_broken(one) for one in results["samples"][task]),
    )


def _group(asked: str, name: str, results: Results, leaves: Sequence[HarnessTask]) -> HarnessTask:
    figures = results["groups"][name]
    members = tuple(results["group_subtasks"].get(name, ()))
    return HarnessTask(
        asked=asked,
        task=name,
        output_type="group",
        samples=int(figures.get("sample_len") or sum(leaf.samples for leaf in leaves)),
        metrics=_metrics(figures, results["higher_is_better"].get(name, {}), ()),
        members=members,
        broken=sum(leaf.broken for leaf in leaves if leaf.task in members),
    )


def _metrics(
    figures: Mapping[str, Any], directions: Mapping[str, Any], samples: Sequence[HarnessSample]
) -> tuple[HarnessMetric, ...]:
    """``"acc,none": 0.5`` with its interval; the harness's own standard errors are left out."""
    found = []
    for key, value in figures.items():
        name, _, kind = key.partition(",")
        figure = _number(value)
        if not kind or name.endswith("_stderr") or figure is None:
            continue
        values = [
            number
            for sample in samples
            if sample.filter == kind
            for metric, number in sample.metrics
            if metric == name
        ]
        score = mean_estimate(values) if values else None
        if score is None or not abs(score.value - figure) < _SAME:
            score = Estimate(value=figure, low=None, high=None, samples=len(values))
        direction = directions.get(name)
        found.append(HarnessMetric(name=name, filter=kind, score=score, higher_is_better=direction))
    return tuple(found)


def yes_or_no(values: Sequence[float]) -> bool:
    """Whether every value is 0 or 1."""
    return all(value in (0.0, 1.0) for value in values)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean with Wilson's interval for 0 and 1, else Student's; at least one value."""
    return wilson(round(sum(values)), len(values)) if yes_or_no(values) else student(values)


def student(values: Sequence[float]) -> Estimate:
    """The mean with Student's 95 % interval (Miller, arXiv 2411.00640, section 2), for any values.

    The interval is None where all are equal or there is one: they say nothing of the spread.
    """
    import numpy as np
    from scipy.stats import t

    count, mean = len(values), float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if count > 1 else 0.0
    if not spread > 0:
        return Estimate(value=mean, low=None, high=None, samples=count)
    low, high = t.interval(_CONFIDENCE, count - 1, loc=mean, scale=spread / math.sqrt(count))
    return Estimate(value=mean, low=float(low), high=float(high), samples=count)


def _is_broken(logged: Mapping[str, Any]) -> bool:
    """Whether some likelihood of a sample is NaN or infinite: argmax over such is chance."""
    return any(
        not math.isfinite(answer[0])
        for answer in logged["filtered_resps"]
        if isinstance(answer, list | tuple)
        and len(answer) == _LIKELIHOOD_PAIR
        and isinstance(answer[0], float)
    ) or any(isinstance(a, float) and not math.isfinite(a) for a in logged["filtered_resps"])


def write_harness(folder: Path, run: HarnessRun) -> None:
    """Write ``harness.json`` and, one JSON object a line, ``harness_samples.jsonl``.

    The samples are written first and the record names their hash, so that a record is never beside
    samples of another run.
    """
    lines = "".join(json.dumps(encode(one), ensure_ascii=False) + "\n" for one in run.samples)
    data = lines.encode("utf-8", "replace")
    write_atomic(folder / SAMPLES, data)
    sha256 = hashlib.sha256(data).hexdigest()
    write_json(folder / RECORD, replace(run, samples=(), samples_sha256=sha256))


def read_harness(folder: Path) -> HarnessRun:
    """What ``write_harness`` wrote; ``StorageError`` where it is missing, cut or mixed up."""
    try:
        run = decode(HarnessRun, json.loads((folder / RECORD).read_text(encoding="utf-8")))
        data = (folder / SAMPLES).read_bytes()
        if hashlib.sha256(data).hexdigest() != run.samples_sha256:
            raise StorageError(
                f"{folder / SAMPLES} does not belong to {RECORD} beside it; run the tasks again"
            )
        # Not splitlines: an answer may hold one of Unicode's other line ends.
        lines = [line for line in data.decode("utf-8").split("\n") if line]
        return replace(run, samples=tuple(decode(HarnessSample, json.loads(x)) for x in lines))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{folder} holds no readable harness run ({error}); run the tasks again"
        ) from error
