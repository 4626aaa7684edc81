"""How long the model's own answers are: measured once, then every variant writes as many tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whet.core.errors import EngineLostError
from whet.core.protocols import Server
from whet.core.records import OutputLengths, PlannedRequest, ResolvedEngine
from whet.flow.run.context import Job
from whet.load import TrialPlan, Workload, run_trial, sample_turns
from whet.load.plan import describe_requests, to_call

_IN_FLIGHT: Final = 32


def output_lengths(job: Job) -> tuple[int, ...]:
    """The measured lengths; none where they are a share of the prompt's."""
    stored = job.store.get("lengths", "answers", OutputLengths)
    return () if stored is None else stored.tokens


def measure_lengths(job: Job, server: Server, resolved: ResolvedEngine) -> None:
    """Let the first server of the run, the baseline's, answer without a length of ours.

    Raises ``EngineLostError`` where it answers nothing.
    """
    traffic = job.spec.workload
    own = job.spec.traffic is not None or job.spec.load.trace is not None
    wanted = traffic.output_lengths == "natural" and not own
    if not wanted or job.store.done("lengths", "answers"):
        return
    requests = tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=prompt,
            max_tokens=traffic.max_output_tokens,
            prefix_id=None,
            shared_tokens=0,
        )
        for index, prompt in enumerate(sample_turns(job.inputs.pool, job.tokenizer, traffic))
    )
    facts = describe_requests(requests, block_size=job.block_size(resolved.variant), seed=0)
    record = run_trial(
        server.base_url,
        server.model_name,
        plan=TrialPlan(
            variant=resolved.variant.name,
            batch_size=_IN_FLIGHT,
            trial=0,
            workload=Workload(requests=requests, facts=facts),
            request_timeout_s=job.spec.load.request_timeout_s,
            calls=tuple(replace(to_call(request), ignore_eos=False) for request in requests),
            require_counters=False,
        ),
        memory=server.memory_bytes,
        alive=server.ensure_alive,
    )
    answers = sorted((event.index, event.output_tokens or 0) for event in record.requests)
    tokens = tuple(count for _, count in answers if count > 0)
    if not tokens:
        raise EngineLostError(
            f"{resolved.variant.name} answered none of {len(requests)} requests; see its log"
        )
    job.observer.note(
        f"{len(tokens)} answers have {sum(tokens) / len(tokens):.0f} tokens on average; every "
        "variant writes as many"
    )
    lengths = OutputLengths(variant=resolved.variant.name, tokens=tokens)
    job.store.put("lengths", "answers", lengths)
