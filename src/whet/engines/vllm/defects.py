"""Known defects that make an engine report wrong figures while its answers are right."""

from __future__ import annotations

from typing import Final

from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.evidence import EngineFacts

_DRAFTS_ON_HOST: Final = frozenset({"ngram", "suffix", "medusa"})
_LATER: Final = "disable_padded_drafter_batch"


def scores_alone(resolved: ResolvedEngine) -> bool:
    """Whether prompts have to be scored one at a time, because several end the engine.

    vLLM 0.32 on a CPU with adapters loaded: ``einsum(): subscript b has size 2 … 62`` where two
    prompts of one step have log-probabilities.
    """
    return resolved.device == "cpu" and bool(resolved.variant.loras)


def scoring_defect(variant: Variant, facts: EngineFacts | None) -> str | None:
    """Why this server may score a prompt wrongly that it would answer rightly, or None.

    vLLM's V1 model runner lets a drafter on the GPU run before it computes the log-probabilities of
    a prompt, and both write into the memory of the CUDA graphs: texts that fit into a graph come
    back as noise or NaN, while generated text is right (vllm-project/vllm#53488, root cause
    in its pull request 53520; read in 0.26's ``gpu_model_runner.py``). The V2 runner is free of it.
    """
    speculation = variant.speculation
    if speculation is None or speculation.method in _DRAFTS_ON_HOST:
        return None
    if facts is None or facts.v2_model_runner or not facts.graphs_captured:
        return None
    if dict(speculation.options).get(_LATER):
        return None
    return (
        "vLLM's V1 model runner is known to overwrite what a prompt's log-probabilities are "
        "computed from, where a drafter runs (vllm-project/vllm#53488), and may answer rightly all "
        f"the same: to see that, set {_LATER}: true in the speculation's options, which switches "
        "asynchronous scheduling off, or serve on the V2 runner"
    )
