"""lm-evaluation-harness: run ``lm_eval`` as a process and score its samples as the gate's own."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from whet.checkpoint import load_tokenizer
from whet.client import Endpoint
from whet.core.errors import MeasurementError, UsageError
from whet.core.outside import json_value, read_text
from whet.core.records.quality import TaskAnswer, TaskScore
from whet.core.redact import redact
from whet.quality.answers import score_task
from whet.quality.asking import ModelEndpoint
from whet.quality.scoring import GRADE_IS_RIGHT

_SEED: Final = 1234
_DETAIL_CHARACTERS: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessRun:
    """The value of each document by task and metric (``mmlu acc``), more is better; gaps by task.

    Longer prompts were cut to ``max_length`` tokens.
    """

    max_length: int
    values: Mapping[str, Mapping[str, float]]
    missing: Mapping[str, str]


def require_harness() -> None:
    """Raise ``UsageError`` unless lm_eval is installed."""
    if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("tenacity") is None:
        fix = "install it with: pip install 'lm-eval[api]'"
        raise UsageError("lm-evaluation-harness is not installed", fix=fix)


def run_harness(
    endpoint: ModelEndpoint,
    tasks: Sequence[str],
    options: Sequence[str],
    *,
    tokenizer: Path,
    max_length: int,
) -> HarnessRun:
    """Run each task with ``options`` of lm_eval. ``UsageError`` for a task that it lacks."""
    encode = load_tokenizer(tokenizer)
    bare, whole = (encode("a", add_special_tokens=flag).input_ids for flag in (False, True))
    arguments = {
        "model": endpoint.model,
        "base_url": Endpoint.parse(endpoint.url).url_of("/v1/completions"),
        "tokenizer": str(tokenizer),
        "tokenizer_backend": "huggingface",
        "tokenized_requests": True,
        "num_concurrent": endpoint.concurrency,
        "max_retries": 3,
        "timeout": 300,
        "max_length": max_length,
        "seed": _SEED,
        # lm_eval adds no begin token by default, even where the tokenizer itself does.
        "add_bos_token": whole == [encode.bos_token_id, *bare],
    }
    words = ["--model", "local-completions", "--model_args", json.dumps(arguments), *options]
    words += ["--log_samples", "--seed", f"0,{_SEED},{_SEED},{_SEED}"]
    values, missing = dict[str, dict[str, float]](), dict[str, str]()
    for task in dict.fromkeys(tasks):
        with TemporaryDirectory(prefix="whet-lm-eval-") as folder:
            try:
                _run(task, [*words, "--tasks", task, "--output_path", folder])
                values |= read_output(Path(folder), task)
            except MeasurementError as error:
                missing[task] = str(error)
    return HarnessRun(max_length=max_length, values=values, missing=missing)


def _run(task: str, words: Sequence[str]) -> None:
    command, nothing = [sys.executable, "-m", "lm_eval", *words], subprocess.DEVNULL
    done = subprocess.run(command, stdin=nothing, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    detail = redact(lines[-1] if lines else f"exit code {done.returncode}")[:_DETAIL_CHARACTERS]
    if "Tasks not found" in detail:
        fix = "correct it, or give its folder with --include-path"
        raise UsageError(f"lm-evaluation-harness knows no task {task!r}", fix=fix)
    raise MeasurementError(f"lm_eval failed ({detail})")


def read_output(folder: Path, task: str) -> dict[str, dict[str, float]]:
    """Read the values of ``task``, or of a group's members, as lm_eval 0.4.13 writes them."""
    values: dict[str, dict[str, float]] = {}
    try:
        (file,) = folder.rglob("results_*.json")
        results = json_value(read_text(file))
        for member in results["n-samples"]:
            log = file.with_name(f"samples_{member}_{file.stem.removeprefix('results_')}.jsonl")
            # Not splitlines: an answer may hold one of Unicode's other line ends.
            lines = read_text(log).split("\n")
            samples = [json_value(line) for line in lines if line]
            if results["configs"][member].get("output_type") != "generate_until":
                _require_likelihoods(member, samples)
            better = results["higher_is_better"].get(member) or {}
            for sample, metric in ((one, metric) for one in samples for metric in one["metrics"]):
                value, kind = sample[metric], sample["filter"]
                if isinstance(value, int | float):
                    name = f"{task} {metric}" if kind == "none" else f"{task} {metric} ({kind})"
                    key = " ".join([member, sample["doc_hash"][:16], sample["prompt_hash"][:16]])
                    own = 1.0 - value if better.get(metric) is False else float(value)
                    values.setdefault(name, {})[f"{key} {sample['doc_id']}"] = own
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        message = f"lm_eval wrote no results in the format of version 0.4 ({error!r})"
        raise MeasurementError(message, fix="install lm-eval>=0.4.13") from error
    if not values:
        raise MeasurementError("none of its metrics is one number per document")
    return values


def _require_likelihoods(task: str, samples: Sequence[Mapping[str, Any]]) -> None:
    """Refuse log-probabilities that are not numbers, or all the same."""
    rows = [  # written as text, alone or before a flag
        [float(answer[0] if isinstance(answer, list) else answer) for answer in each]
        for each in (sample["filtered_resps"] for sample in samples)
    ]
    if broken := sum(not all(map(math.isfinite, row)) for row in rows):
        raise MeasurementError(f"{task} has {broken} likelihoods that are not numbers")
    # Some servers answer echo with logprobs by zeros; every choice then scores alike.
    if rows and all(len(row) > 1 and len(set(row)) == 1 for row in rows):
        raise MeasurementError("the server gives every choice the same log-probability")


def compare_harness(
    run: HarnessRun, baseline: HarnessRun | None = None
) -> tuple[tuple[TaskScore, ...], tuple[str, ...]]:
    """Return a score per task and metric over the documents that both sides have, and the gaps.

    A document with another prompt (other few-shot examples) is another document.
    """
    gaps, scores = [f"{task}: {why}" for task, why in run.missing.items()], []
    gaps += [f"{t}: {w} (baseline)" for t, w in (baseline.missing if baseline else {}).items()]
    for name, values in run.values.items():
        before = values if baseline is None else baseline.values.get(name, {})
        keys = [key for key in values if key in before]
        if not keys:
            gaps.append(f"{name}: the baseline has no document with the same prompt")
            continue
        by_grade = not {side[key] for key in keys for side in (values, before)} <= {0.0, 1.0}
        here, old = (
            {key: _answer(name, key, side[key], by_grade=by_grade) for key in keys}
            for side in (values, before)
        )
        scores.append(score_task(name, list(here.values()), {} if baseline is None else old))
    return tuple(scores), tuple(gaps)


def _answer(task: str, key: str, value: float, *, by_grade: bool) -> TaskAnswer:
    grade = value if by_grade else None
    return TaskAnswer(id=key, task=task, text="", right=value >= GRADE_IS_RIGHT, grade=grade)
