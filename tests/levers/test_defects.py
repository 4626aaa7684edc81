"""What is known to be wrong with an engine's own figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.builders import resolved
from whet.core.records.engine import Speculation
from whet.core.records.evidence import EngineFacts
from whet.engines.vllm.limits import scores_alone, scoring_defect

V1_WITH_GRAPHS = EngineFacts(
    version="0.26.0", weight_kernels=(), quantized_layers=None, unquantized_layers=None,
    attention_backend=None, kv_cache_tokens=None, prefix_cache_enabled=None, async_scheduling=None,
    notices=(), graphs_captured=True,
)  # fmt: skip
HEAD = Speculation(method="eagle3", num_tokens=2, draft_path="/head")
LATER = replace(HEAD, options=(("disable_padded_drafter_batch", True),))


@pytest.mark.parametrize("method", ["eagle3", "eagle", "mtp", "draft_model"])
def test_a_drafter_on_the_v1_runner_may_spoil_the_scores(method: str) -> None:
    variant = resolved(speculation=replace(HEAD, method=method)).variant
    told = scoring_defect(variant, V1_WITH_GRAPHS)
    assert told is not None
    assert "disable_padded_drafter_batch: true" in told


@pytest.mark.parametrize(
    ("speculation", "facts"),
    [
        (None, V1_WITH_GRAPHS),
        (replace(HEAD, method="ngram"), V1_WITH_GRAPHS),  # drafted on the host, afterwards
        (LATER, V1_WITH_GRAPHS),
        (HEAD, None),
        (HEAD, replace(V1_WITH_GRAPHS, v2_model_runner=True)),
        (HEAD, replace(V1_WITH_GRAPHS, graphs_captured=None)),  # eager, or a CPU
    ],
)
def test_no_other_server_is_suspected(
    speculation: Speculation | None, facts: EngineFacts | None
) -> None:
    assert scoring_defect(resolved(speculation=speculation).variant, facts) is None


def test_prompts_are_scored_one_at_a_time_beside_adapters_on_a_cpu() -> None:
    plain = resolved()
    loaded = replace(plain, variant=replace(plain.variant, loras=(("a", "/a"),)))
    assert not scores_alone(plain)
    assert scores_alone(loaded)
    assert not scores_alone(replace(loaded, device="cuda"))
