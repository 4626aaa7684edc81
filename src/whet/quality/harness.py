"""lm-evaluation-harness against a served variant, through its Python API.

The server is asked over ``/v1/completions``, as its traffic is, and every sample is kept: the
harness compares two models by an unpaired z-test, ``harness_compare`` pairs them.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from whet.client import Endpoint, Failure, HttpError, get_text
from whet.core.errors import MeasurementError, UsageError
from whet.core.names import did_you_mean
from whet.core.records import HarnessRun, HarnessSample, HarnessTask
from whet.core.redact import redact
from whet.quality.asking import NOT_A_NUMBER, Peer, ask, is_not_a_number, why
from whet.quality.harness_samples import read_samples, read_tasks

_DEFAULT_LENGTH: Final = 2048
_PROBE: Final = "The quick brown fox jumps over the lazy dog and runs into the wood."
_GENERATED: Final = "generate_until"
_SHUFFLE_SEED: Final = 0
"""The harness's own default for Python's generator, which some tasks shuffle choices with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessPlan:
    """What to ask of one variant; the same plan must be used for its baseline.

    ``tasks`` are the harness's names (tasks, groups or tags) or paths of task files; ``tokenizer``
    is the checkpoint's folder; ``limit`` takes that many documents of each task, from the start;
    ``include_path`` holds a person's own task files. ``num_fewshot`` None leaves each task its own.
    ``max_length`` is in tokens, reply included; None takes what the server says it can hold.
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
    chat_template: bool = False


def run_harness(server_url: str, model: str, plan: HarnessPlan) -> HarnessRun:
    """Run every task of ``plan`` against ``model`` at ``server_url``.

    A task that the server cannot answer, or whose data cannot be loaded, has no figures and says
    why; the others go on. ``UsageError`` where lm_eval is not installed, a task is unknown or its
    file cannot be read. Sets the seeds of ``random``, numpy and torch, as the harness does.
    """
    require_harness(plan)
    from lm_eval import __version__ as version

    started = time.monotonic()
    url = Endpoint.parse(server_url).url
    length = plan.max_length or served_length(url, model) or _DEFAULT_LENGTH
    lm = _model(url, model, plan, length)
    peer = Peer(url=url, model=model, concurrency=1)
    echo = _Echo(peer=peer, ids=lm.tok_encode(_PROBE))
    catalogue = _Catalogue(plan.include_path)
    tasks: list[HarnessTask] = []
    samples: dict[str, list[HarnessSample]] = {}
    for name in dict.fromkeys(plan.tasks):
        found, kept = _one(name, catalogue, lm, plan, echo)
        tasks += found
        # A task may be a member of two groups that were asked for; its samples are kept once.
        samples |= {task: list(own) for task, own in groupby(kept, key=lambda one: one.task)}
    return HarnessRun(
        variant=plan.variant,
        model=model,
        harness_version=str(version),
        seed=plan.seed,
        limit=plan.limit,
        chat_template=plan.chat_template,
        max_length=length,
        tasks=tuple(tasks),
        samples=tuple(sample for task in samples.values() for sample in task),
        echo=echo.problem,
        truncated=lm.truncated,
        seconds=time.monotonic() - started,
    )


def require_harness(plan: HarnessPlan) -> None:
    """``UsageError`` unless lm_eval is installed and the plan can be used."""
    if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("tenacity") is None:
        raise UsageError(
            "lm-evaluation-harness is not installed; install it with: pip install 'whet[lm-eval]'"
        )
    if not plan.tasks:
        raise UsageError("no task is named; name some, as in mmlu,hellaswag")
    if plan.include_path is not None and not plan.include_path.is_dir():
        raise UsageError(f"{plan.include_path} is no folder of task files; correct the path")
    if (plan.limit is not None and plan.limit < 1) or plan.concurrency < 1:
        raise UsageError("the limit and the concurrency of the harness must be at least 1")


def served_length(server_url: str, model: str) -> int | None:
    """Tokens that the server holds for one request (vLLM's ``max_model_len``), None if unsaid."""
    try:
        listed = json.loads(get_text(server_url, "/v1/models"))["data"]
        found = [card.get("max_model_len") for card in listed if card.get("id") == model]
    except (HttpError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found[0] if found and isinstance(found[0], int) and found[0] > 0 else None


def echo_problem(peer: Peer, ids: Sequence[int]) -> str | None:
    """Why this server's echo cannot score a prompt, or None where it can.

    Some servers accept ``echo`` with ``logprobs`` and answer for the one generated token only, or
    with zeros; every choice then scores alike and a task ends at chance (llama.cpp#27174). A figure
    that is not a number is an answer, and is found again by the tasks themselves.
    """
    body = {
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 1,
        "echo": True,
    }
    reply = ask(peer, [body])[0]
    if isinstance(reply, Failure):
        if is_not_a_number(reply):
            return None
        return f"the server does not answer a request for echo with logprobs ({why(reply)})"
    return _echo_gap(reply, len(ids))


def _echo_gap(reply: Mapping[str, Any], prompt_tokens: int) -> str | None:
    choices = reply.get("choices")
    logprobs = choices[0].get("logprobs") if isinstance(choices, list) and choices else None
    parts = logprobs if isinstance(logprobs, dict) else {}
    listed, tops = parts.get("token_logprobs"), parts.get("top_logprobs")
    # One entry for each token of the prompt, the first of them null, and one for the reply's.
    if not isinstance(listed, list) or len(listed) != prompt_tokens + 1:
        return "the server leaves the prompt's log-probabilities out of its echo"
    scored = listed[1:-1]
    if any(not isinstance(value, int | float) for value in scored):
        return "the server's echo holds no log-probability for some tokens of the prompt"
    if not isinstance(tops, list) or len(tops) != len(listed) or not all(tops[1:-1]):
        return "the server's echo does not say which token was likeliest"
    if len(set(scored)) == 1 and math.isfinite(scored[0]):
        return "the server's echo gives every token of the prompt the same log-probability"
    return None


@dataclass(kw_only=True, slots=True)
class _Echo:
    """Whether the server scores prompts: asked once, and only if some task needs it."""

    peer: Peer
    ids: Sequence[int]
    problem: str | None = None
    asked: bool = False

    def check(self) -> str | None:
        if not self.asked:
            self.problem, self.asked = echo_problem(self.peer, self.ids), True
        return self.problem


class _Catalogue:
    """Task files by name. The harness's own take many seconds to index, so they are read last."""

    def __init__(self, include_path: Path | None) -> None:
        from lm_eval.tasks import TaskManager

        self._include = None if include_path is None else str(include_path)
        self._own = TaskManager(include_path=self._include, include_defaults=False)
        self._all: Any = None

    def load(self, name: str) -> Any:
        """The tasks and groups of a name; ``OSError`` where their data is out of reach."""
        if name in self._own.task_index or Path(name).is_file():
            try:
                return self._build(self._own, name)
            except KeyError:
                pass  # it refers to a task of the harness's own
        try:
            return self._build(self._everything(), name)
        except KeyError as error:
            raise UsageError(
                f"the task {name!r} refers to {error}, which is no task; correct its file"
            ) from error

    def _everything(self) -> Any:
        from lm_eval.tasks import TaskManager

        if self._all is None:
            self._all = TaskManager(include_path=self._include)
        return self._all

    def _build(self, manager: Any, name: str) -> Any:
        if name not in manager.task_index and not Path(name).is_file():
            raise UsageError(
                f"lm-evaluation-harness knows no task {name!r}"
                f"{did_you_mean(name, manager.task_index)}; correct the name, or give the folder "
                "of its task file as include_path"
            )
        try:
            return manager.load(name)
        except (ValueError, TypeError, AttributeError, ImportError) as error:
            raise UsageError(
                f"the task {name!r} cannot be set up: {_short(error)}; correct its file, "
                "or install what it asks for"
            ) from error


def _model(url: str, model: str, plan: HarnessPlan, length: int) -> Any:
    from whet.quality.harness_model import BoundedCompletions

    try:
        return BoundedCompletions(url, model, plan, max_length=length)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(
            f"{plan.tokenizer} holds no tokenizer that can be used ({_short(error)}); name the "
            "checkpoint's folder"
        ) from error


def _one(
    name: str, catalogue: _Catalogue, lm: Any, plan: HarnessPlan, echo: _Echo
) -> tuple[tuple[HarnessTask, ...], tuple[HarnessSample, ...]]:
    """One name's figures and samples, or one task that says why there are none."""
    from datasets.exceptions import DatasetsError

    with _listening() as said:
        try:
            loaded = catalogue.load(name)
        except (OSError, DatasetsError) as error:
            return _missing(name, f"its data could not be loaded ({_short(error)})"), ()
        kinds = {task.OUTPUT_TYPE for task in loaded["tasks"].values()}
        refused = echo.check() if kinds != {_GENERATED} else None
        if refused is not None:
            return _missing(name, f"it needs likelihoods, and {refused}"), ()
        try:
            results = _evaluate(lm, name, loaded, plan)
        except _foreign_errors() as error:
            return _failed(name, said.failure or _short(error)), ()
    samples = read_samples(results)
    return read_tasks(name, results, samples), samples


def _evaluate(lm: Any, name: str, loaded: Any, plan: HarnessPlan) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    whole = [loaded["groups"][name]] if name in loaded["groups"] else [*loaded["tasks"].values()]
    results = simple_evaluate(
        model=lm,
        tasks=whole,
        num_fewshot=plan.num_fewshot,
        limit=plan.limit,
        # What was loaded is passed in; an empty index keeps the harness from reading all again.
        task_manager=TaskManager(include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        apply_chat_template=plan.chat_template,
        random_seed=_SHUFFLE_SEED,
        numpy_random_seed=plan.seed,
        torch_random_seed=plan.seed,
        fewshot_random_seed=plan.seed,
    )
    if results is None:
        raise MeasurementError(f"lm-evaluation-harness gave no results for {name}; run it again")
    return results


def _foreign_errors() -> tuple[type[Exception], ...]:
    """What the harness lets through: the client's, the templates', its own parsing's."""
    import aiohttp
    import jinja2

    plain = (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError)
    return (*plain, ImportError, RuntimeError, aiohttp.ClientError, jinja2.TemplateError)


def _missing(name: str, reason: str) -> tuple[HarnessTask, ...]:
    return (HarnessTask(asked=name, task=name, missing=reason),)


def _failed(name: str, detail: str) -> tuple[HarnessTask, ...]:
    if NOT_A_NUMBER.search(detail):
        reason = "the server's log-probabilities are not numbers (NaN)"
        return (HarnessTask(asked=name, task=name, missing=reason, broken=1),)
    return _missing(name, f"it ended before its figures were whole ({detail})")


def _short(error: Exception) -> str:
    return redact(f"{type(error).__name__}: {error}".strip())[:300]


@dataclass(slots=True)
class _Said:
    failure: str | None = field(default=None)


@contextmanager
def _listening() -> Iterator[_Said]:
    """Keep what the server answered to a failed request: the harness only logs it.

    Its other notices are about its own settings, which the record holds.
    """
    said = _Said()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "API request failed" in text:
                said.failure = redact(" ".join(text.split()))[:300]

    logger = logging.getLogger("lm_eval")
    handler, propagated = Handler(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
