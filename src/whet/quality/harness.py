"""lm-evaluation-harness against a server: run ``lm_eval`` as a process and read what it writes."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import load_tokenizer
from whet.client import Endpoint, HttpError, get_text
from whet.core.errors import MeasurementError, StorageError, UsageError
from whet.core.records import Estimate, HarnessMetric, HarnessRun, HarnessSample, HarnessTask
from whet.core.records.codec import decode
from whet.core.redact import redact
from whet.core.store import read_json, write_json
from whet.quality.paired import mean_estimate

RECORD: Final = "harness.json"
_DEFAULT_LENGTH: Final = 2048
_PROMPT_CHARACTERS: Final = 400
_DETAIL_CHARACTERS: Final = 300
_SAME: Final = 1e-9
_GENERATED: Final = "generate_until"

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessPlan:
    """What to ask of one variant; the same plan must be used for its baseline.

    ``tasks`` are the harness's names (tasks, groups or tags); ``tokenizer`` is the checkpoint's
    folder; ``limit`` takes the first documents of each task; ``include_path`` holds own task files.
    ``num_fewshot`` None keeps each task's own. ``max_length`` is in tokens, reply included; None
    takes the server's own limit.
    """

    variant: str
    tasks: tuple[str, ...]
    tokenizer: Path
    limit: int | None = None
    include_path: Path | None = None
    concurrency: int = 8
    num_fewshot: int | None = None
    seed: int = 1234
    max_length: int | None = None


def run_harness(server_url: str, model: str, plan: HarnessPlan) -> HarnessRun:
    """Run every task of ``plan`` against ``model`` at ``server_url``, one process a task.

    A task that fails has no figures and says why; the others go on. Raises ``UsageError`` where
    lm_eval is not installed or does not know a task.
    """
    require_harness(plan)
    started = time.monotonic()
    url = Endpoint.parse(server_url).url_of("/v1/completions")
    length = plan.max_length or max_model_length(server_url, model) or _DEFAULT_LENGTH
    arguments = _model_args(url, model, plan, length)
    tasks: list[HarnessTask] = []
    samples: dict[str, list[HarnessSample]] = {}
    version = "unknown"
    for name in dict.fromkeys(plan.tasks):
        with tempfile.TemporaryDirectory(prefix="whet-lm-eval-") as folder:
            problem = _run(name, arguments, plan, Path(folder))
            if problem is not None:
                tasks.append(HarnessTask(asked=name, task=name, missing=problem))
                continue
            version, own, logged = read_output(Path(folder), name)
        tasks += own
        # A task may be in two groups; its samples count once.
        samples |= {task: list(of) for task, of in groupby(logged, key=lambda one: one.task)}
    return HarnessRun(
        variant=plan.variant,
        model=model,
        harness_version=version,
        seed=plan.seed,
        limit=plan.limit,
        max_length=length,
        tasks=tuple(tasks),
        samples=tuple(sample for task in samples.values() for sample in task),
        seconds=time.monotonic() - started,
    )


def require_harness(plan: HarnessPlan) -> None:
    """``UsageError`` unless lm_eval is installed and the plan can be used."""
    if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("tenacity") is None:
        raise UsageError(
            "lm-evaluation-harness is not installed; install it with: pip install 'whet[lm-eval]'"
        )
    if not plan.tasks:
        raise UsageError("--lm-eval names no task; name some, as in mmlu,hellaswag")
    if plan.include_path is not None and not plan.include_path.is_dir():
        raise UsageError(f"{plan.include_path} is not a folder of task files; correct the path")


def max_model_length(server_url: str, model: str) -> int | None:
    """Tokens that the server holds for one request (vLLM's ``max_model_len``), if it says so."""
    try:
        cards = json.loads(get_text(server_url, "/v1/models"))["data"]
        lengths = [card.get("max_model_len") for card in cards if card.get("id") == model]
    except (HttpError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return lengths[0] if lengths and isinstance(lengths[0], int) and lengths[0] > 0 else None


def _model_args(url: str, model: str, plan: HarnessPlan, length: int) -> str:
    tokenizer = load_tokenizer(plan.tokenizer)
    bare, whole = (tokenizer("a", add_special_tokens=flag).input_ids for flag in (False, True))
    return json.dumps(
        {
            "model": model,
            "base_url": url,
            "tokenizer": str(plan.tokenizer),
            "tokenizer_backend": "huggingface",
            "tokenized_requests": True,
            "num_concurrent": plan.concurrency,
            "max_retries": 3,
            "timeout": 300,
            "max_length": length,
            "seed": plan.seed,
            # lm_eval adds no begin token by default, even where the tokenizer itself does.
            "add_bos_token": whole == [tokenizer.bos_token_id, *bare],
        }
    )


def _run(name: str, model_args: str, plan: HarnessPlan, folder: Path) -> str | None:
    """Run lm_eval on one name; why it failed, or None."""
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions"]
    command += ["--model_args", model_args, "--tasks", name, "--output_path", str(folder)]
    command += ["--log_samples", "--seed", f"0,{plan.seed},{plan.seed},{plan.seed}"]
    for flag, value in (
        ("--limit", plan.limit),
        ("--num_fewshot", plan.num_fewshot),
        ("--include_path", plan.include_path),
    ):
        command += [] if value is None else [flag, str(value)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    detail = redact(lines[-1] if lines else f"exit code {done.returncode}")[:_DETAIL_CHARACTERS]
    if "Tasks not found" in detail:
        raise UsageError(
            f"lm-evaluation-harness knows no task {name!r}; correct the name, or give the "
            "folder of its task file with --include-path"
        )
    return f"lm_eval failed ({detail})"


def read_output(
    folder: Path, task_name: str
) -> tuple[str, tuple[HarnessTask, ...], tuple[HarnessSample, ...]]:
    """Read the harness's version, tasks (groups first) and samples from its ``--output_path``.

    Reads ``results_*.json`` and ``samples_<task>_*.jsonl`` as lm_eval 0.4.13 writes them.
    """
    files = sorted(folder.rglob("results_*.json"))
    if not files:
        raise MeasurementError(f"lm_eval wrote no results for {task_name}; run it again")
    try:
        results: Json = json.loads(files[-1].read_text(encoding="utf-8"))
        logged = {task: _lines(files[-1], task) for task in sorted(results["n-samples"])}
        leaves = tuple(_leaf(task_name, task, results, logged[task]) for task in logged)
        groups = [
            _task(
                task_name, name, results, (), members=tuple(results["group_subtasks"].get(name, ()))
            )
            for name in results.get("groups") or {}
        ]
        samples = tuple(_sample(task, one) for task, lines in logged.items() for one in lines)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise MeasurementError(
            f"the results of lm_eval for {task_name} are not in the format of version 0.4 "
            f"({error!r}); install lm-eval>=0.4.13"
        ) from error
    return str(results.get("lm_eval_version")), (*groups, *leaves), samples


def _lines(results: Path, task: str) -> list[Json]:
    stamp = results.stem.removeprefix("results_")
    text = (results.parent / f"samples_{task}_{stamp}.jsonl").read_text(encoding="utf-8")
    # Not splitlines: an answer may hold one of Unicode's other line ends.
    return [json.loads(line) for line in text.split("\n") if line]


def _sample(task: str, logged: Json) -> HarnessSample:
    answers, prompts = logged["filtered_resps"], list(logged["arguments"].values())
    plain = answers[0] if len(answers) == 1 and isinstance(answers[0], str) else None
    return HarnessSample(
        task=task,
        filter=str(logged["filter"]),
        doc_id=int(logged["doc_id"]),
        doc_hash=str(logged["doc_hash"]),
        prompt_hash=str(logged["prompt_hash"]),
        metrics=tuple(_numbers((name, logged[name]) for name in logged["metrics"])),
        target=str(logged["target"]),
        response=json.dumps(answers, ensure_ascii=False) if plain is None else plain,
        prompt_end=str(prompts[0]["arg_0"])[-_PROMPT_CHARACTERS:] if prompts else "",
    )


def _numbers(values: Iterator[tuple[str, object]]) -> Iterator[tuple[str, float]]:
    """Metrics that are one number; others (a reference and an answer, …) cannot be paired."""
    for name, value in values:
        if isinstance(value, bool | int | float):
            yield name, float(value)


def _leaf(task_name: str, task: str, results: Json, logged: Sequence[Json]) -> HarnessTask:
    """Return a task's figures; ``missing`` says why if its likelihoods are not usable."""
    if results["configs"][task].get("output_type") == _GENERATED:
        return _task(task_name, task, results, logged)
    scores = [[_likelihood(answer) for answer in one["filtered_resps"]] for one in logged]
    broken = sum(not all(map(math.isfinite, row)) for row in scores)
    # Some servers answer echo with logprobs by zeros; every choice then scores alike.
    if not broken and scores and all(len(row) > 1 and len(set(row)) == 1 for row in scores):
        reason = "the server gives every choice the same log-probability, so its echo is of no use"
        return HarnessTask(asked=task_name, task=task, missing=reason)
    return _task(task_name, task, results, logged, broken=broken)


def _likelihood(answer: Any) -> float:
    """A log-probability, which lm_eval writes as text, alone or before a flag."""
    return float(answer[0] if isinstance(answer, list) else answer)


def _task(
    task_name: str,
    task: str,
    results: Json,
    logged: Sequence[Json],
    *,
    members: tuple[str, ...] = (),
    broken: int = 0,
) -> HarnessTask:
    figures = results["results"][task]
    counts = results["n-samples"].get(task, {})
    return HarnessTask(
        asked=task_name,
        task=task,
        version=str(results["versions"].get(task)),
        output_type="group" if members else results["configs"][task].get("output_type"),
        num_fewshot=results["n-shot"].get(task),
        samples=int(counts.get("effective", figures.get("sample_len", 0))),
        available=counts.get("original"),
        metrics=tuple(_metrics(figures, results["higher_is_better"].get(task) or {}, logged)),
        members=members,
        broken=broken,
    )


def _metrics(figures: Json, directions: Json, logged: Sequence[Json]) -> Iterator[HarnessMetric]:
    """``"acc,none": 0.5`` with its interval; the harness's own standard errors are left out."""
    for key, value in _numbers(iter(figures.items())):
        name, _, kind = key.partition(",")
        if not kind or name.endswith("_stderr"):
            continue
        own = [dict(_numbers(iter(one.items()))) for one in logged if one["filter"] == kind]
        values = [one[name] for one in own if name in one]
        score = mean_estimate(values) if values else None
        if score is None or not abs(score.value - value) < _SAME:
            score = Estimate(value=value, low=None, high=None, samples=len(values))
        yield HarnessMetric(
            name=name, filter=kind, score=score, higher_is_better=directions.get(name)
        )


def write_harness(folder: Path, run: HarnessRun) -> None:
    """Write ``harness.json``, whole or not at all."""
    write_json(folder / RECORD, run)


def read_harness(folder: Path) -> HarnessRun:
    """What ``write_harness`` wrote; ``StorageError`` where it is missing or damaged."""
    path = folder / RECORD
    try:
        run = decode(HarnessRun, read_json(path))
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} holds no readable run ({error}); run the tasks again"
        ) from error
    if not run.samples and any(task.samples for task in run.tasks):
        raise StorageError(f"{path} was written by an earlier version of whet; run the tasks again")
    return run
