"""Whether runs of several machines may be decided together: one model and one traffic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from whet.core.errors import UsageError
from whet.core.records.model import ModelFacts
from whet.core.run import Run
from whet.flow.run.conclude.faults import log_facts

_SHAPE: Final = (
    "architecture",
    "layers",
    "hidden_size",
    "heads",
    "kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "experts",
)


def refuse_unlike(runs: Sequence[Run]) -> None:
    """Raise ``UsageError`` where a run is of another model or traffic than another."""
    for first, other in combinations(runs, 2):  # two may differ in what a third does not store
        for what in (*_models(first, other), *_traffic(first, other)):
            raise UsageError(
                f"{first.root} and {other.root} differ in {what}, so their costs cannot be "
                "compared",
                fix="decide each alone, or measure both with one spec",
            )


def _models(first: Run, other: Run) -> Iterator[str]:
    """Yield what differs between the targets, by their stored facts and never by their paths."""
    left, right = first.models.get("target"), other.models.get("target")
    if left is None or right is None:
        return
    if [getattr(left, name) for name in _SHAPE] != [getattr(right, name) for name in _SHAPE]:
        yield f"their models ({_words(left)} and {_words(right)})"
    # A quantized checkpoint has other bytes than its base.
    quantized = left.stored.scheme != right.stored.scheme
    if left.weights_sha256 != right.weights_sha256 and not quantized:
        yield "the weights of their models"
    if left.tokenizer.sha256 != right.tokenizer.sha256:
        yield "their tokenizers"
    if left.tokenizer.chat_template_sha256 != right.tokenizer.chat_template_sha256:
        yield "their chat templates"


def _words(model: ModelFacts) -> str:
    return f"{model.architecture}, {model.parameters / 1e9:.3g} B parameters"


def _traffic(first: Run, other: Run) -> Iterator[str]:
    """Yield what differs in what is asked; the lengths of answers may be each machine's own."""
    if _source(first) != _source(other) or _prompts_differ(first, other):
        yield "their traffic"
    open_loops = [{load.is_open for load in run.loads} for run in (first, other)]
    if all(open_loops) and open_loops[0] != open_loops[1]:
        yield "their kind of load (requests in flight, and requests a second)"
    elif first.require_spec().load.demand != other.require_spec().load.demand:
        yield "load.demand_rps"


def _source(run: Run) -> tuple[object, ...]:
    spec = run.require_spec()
    generated = spec.workload.model_copy(update={"seed": 0})
    return spec.traffic is None, spec.load.trace is None, generated


def _prompts_differ(first: Run, other: Run) -> bool:
    """Whether two logs are unlike, or trials of one load, number and seed have other prompts."""
    logs = [log_facts(first), log_facts(other)]
    if all(logs) and logs[0] != logs[1]:
        return True
    if first.require_spec().workload.seed != other.require_spec().workload.seed:
        return False
    left, right = first.workloads, other.workloads
    return any(
        left[key].requests == right[key].requests
        and left[key].input_tokens_mean != right[key].input_tokens_mean
        for key in left.keys() & right.keys()
    )
