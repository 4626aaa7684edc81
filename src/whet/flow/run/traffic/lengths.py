"""How long the model's own answers are: measured once, then every variant writes as many tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whet.checkpoint.chat import TemplateProblem
from whet.checkpoint.encoder import load_encoder
from whet.core.errors import EngineLostError
from whet.core.load import Load
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import OutputLengths, PlannedRequest
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.traffic.logged import stored_part
from whet.flow.serving import trial_on
from whet.load import TrialPlan, Workload, sample_turns
from whet.load.plan import describe_requests, to_call
from whet.load.workload import SAMPLED_TURNS

_IN_FLIGHT: Final = 32


def output_lengths(store: RunStore) -> tuple[int, ...]:
    """Return the measured lengths; none where they are a share of the prompt's."""
    stored = store.get("lengths", "answers", OutputLengths)
    return () if stored is None else stored.tokens


def measure_lengths(
    plan: Plan, recorder: Recorder, server: Server, resolved: ResolvedEngine
) -> None:
    """Let the first server of the run, the baseline's, answer without a length of ours.

    Raises ``EngineLostError`` where it answers nothing.
    """
    spec = plan.spec
    if not lacks_lengths(spec, recorder.store):
        return
    requests = tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=prompt,
            max_tokens=tokens,
            temperature=spec.workload.temperature,
        )
        for index, (prompt, tokens) in enumerate(_prompts(plan))
    )
    facts = describe_requests(requests, block_size=plan.block_size(resolved.variant), seed=0)
    record = trial_on(
        server,
        resolved,
        TrialPlan(
            variant=resolved.variant.name,
            load=Load.at(_IN_FLIGHT),
            trial=0,
            workload=Workload(requests=requests, facts=facts),
            request_timeout_s=spec.load.request_timeout_s,
            calls=tuple(replace(to_call(request), ignore_eos=False) for request in requests),
            require_counters=False,
        ),
    )
    answers = sorted((event.index, event.output_tokens or 0) for event in record.requests)
    tokens = tuple(count for _, count in answers if count > 0)
    if not tokens:
        raise EngineLostError(
            f"{resolved.variant.name} answered none of {len(requests)} requests", fix="see its log"
        )
    recorder.observer.note(
        f"{len(tokens)} answers have {sum(tokens) / len(tokens):.0f} tokens on average; every "
        "variant writes as many"
    )
    lengths = OutputLengths(variant=resolved.variant.name, tokens=tokens)
    recorder.store.put("lengths", "answers", lengths)


def lacks_lengths(spec: Spec, store: RunStore) -> bool:
    """Return whether answers have the model's own length, and it is still to be measured."""
    natural = spec.load.trace is None and spec.workload.output_lengths == "natural"
    if spec.traffic is not None:
        natural = spec.traffic.answers == "natural"
    return natural and not store.done("lengths", "answers")


def _prompts(plan: Plan) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield prompts to answer, and how many tokens each answer has at most."""
    spec = plan.spec
    if plan.inputs.traffic is None or spec.traffic is None:
        turns = sample_turns(plan.inputs.pool, plan.tokenizer, spec.workload, spec.model.variables)
        yield from ((prompt, spec.workload.max_output_tokens) for prompt in turns)
        return
    rows = [each.request for each in stored_part(plan.inputs.traffic, "load")[:SAMPLED_TURNS]]
    rendered = load_encoder(plan.tokenizer, variables=spec.model.chat_template_kwargs).ids_many(
        rows
    )
    for request, ids in zip(rows, rendered, strict=True):
        if not isinstance(ids, TemplateProblem):
            yield tuple(ids.tolist()), request.max_tokens or spec.traffic.max_output_tokens
