"""What flow tests share: a lenient client for the fast ones, one real server for the e2e ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whet.core.protocols import Server
from whet.core.records.engine import Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.engines import get_engine


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest) -> None:
    if "e2e" not in request.keywords:
        request.getfixturevalue("lenient_client")


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real vLLM with the demo target and a prefix cache, for every e2e test that needs a URL."""
    variant = Variant(
        name="cache",
        weights="fp16",
        scheme=None,
        model_path=str(pair_paths()[0]),
        speculation=None,
        prefix_cache=True,
        engine_args=(("max_model_len", 2048), ("enforce_eager", True), ("block_size", 32)),
        env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
    )
    engine = get_engine("vllm")
    resolved = engine.resolve(variant, EngineSpec(ready_timeout_s=300.0))
    with engine.serve(resolved, log=tmp_path_factory.mktemp("log") / "engine.log") as server:
        yield server
