"""Real vLLM on this machine's CPU: what it says about itself, and that it never outlives us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from whet.client import scrape
from whet.core import counters
from whet.core.errors import EngineLostError
from whet.core.records.codec import encode
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.spec import EngineSpec
from whet.core.starts import start_parts
from whet.engines import get_engine
from whet.engines.fork_starts import warm_engine
from whet.engines.probe import request
from whet.engines.vllm import find_installed
from whet.engines.vllm.log import read_log
from whet.engines.vllm.server_info import read_declared
from whet.levers import judge_start

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

ARGS = (("max_model_len", 512), ("enforce_eager", True), ("max_num_seqs", 8))


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> ResolvedEngine:
    from tests.engines.tiny import write_pair, write_w4a16

    folder = tmp_path_factory.mktemp("tiny")
    target, draft = write_pair(folder)
    variant = Variant(
        name="awq+draft+cache",
        weights="awq",
        scheme="W4A16",
        model_path=str(write_w4a16(target, folder / "w4a16")),
        speculation=Speculation(method="draft_model", num_tokens=3, draft_path=str(draft)),
        prefix_cache=True,
        engine_args=ARGS,
        env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
    )
    engine = get_engine("vllm")
    made = engine.resolve(variant, EngineSpec(ready_timeout_s=300.0))
    assert engine.unsupported(made) is None
    return made


def wait_until(holds: Callable[[], bool], *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not holds():
        time.sleep(0.2)
    return holds()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


LOGGED = {
    *("version", "weight_kernels", "quantized_layers", "unquantized_layers", "attention_backend"),
    *("attention_class", "kv_cache_tokens", "kv_elements", "prefix_cache_enabled", "max_model_len"),
    *("eager", "tensor_parallel", "frontend", "notices"),
    *("load_s", "init_s", "core_s", "kv_cache_dtype"),
    *("speculative_config.method", "speculative_config.num_speculative_tokens"),
    *("compilation_config.cudagraph_mode", "compilation_config.cudagraph_capture_sizes"),
}
"""What the log of every start on a CPU says, by the names of ``EngineFacts`` and its settings."""
COUNTED = {
    *(counters.GENERATED, counters.DRAFTS, counters.DRAFT_TOKENS, counters.ACCEPTED),
    *(counters.PREFIX_QUERIES, counters.PREFIX_HITS, counters.PROMPT_TOKENS, counters.FINISHED),
    *(counters.PREEMPTIONS, counters.RUNNING, counters.WAITING, counters.KV_USAGE),
    *(counters.CACHE_CONFIG, counters.PROCESS_START),
    *(f"{name}_sum" for name in (counters.TTFT, counters.TPOT, counters.ITL, counters.E2E)),
}


@pytest.mark.canary
def test_a_real_server_proves_itself_and_its_death_is_noticed(
    resolved: ResolvedEngine, tmp_path: Path
) -> None:
    with get_engine("vllm").serve(resolved, log=tmp_path / "engine.log") as server:
        assert server.start.pid is not None
        tree = psutil.Process(server.start.pid).children(recursive=True)
        facts = read_log(server.log_text())
        assert facts.version == resolved.engine_version
        assert facts.quantized_layers == 8  # 2 layers of qkv, o, gate_up and down; not the draft's
        assert facts.unquantized_layers == 0
        assert facts.prefix_cache_enabled is True
        assert (facts.kv_cache_tokens or 0) > 512
        logged = {name for name, value in asdict(facts).items() if value not in (None, ())}
        assert LOGGED - logged - dict(facts.settings).keys() == set()
        weights, *others = judge_start(resolved, facts, read_declared(server.base_url))
        assert weights.outcome == "proved", weights
        assert {item.claim.kind: item.outcome for item in others} == {
            "settings": "proved",
            "execution": "proved",
        }, others
        assert "LinearKernel for CompressedTensorsWNA16" in weights.observed

        body = {"model": server.model_name, "prompt": "the quick", "max_tokens": 1}
        status, text = request(
            server.base_url, "/v1/completions", body=body | {"prompt_logprobs": 1}, timeout_s=60
        )
        assert status == 200
        assert len(json.loads(text)["choices"][0]["prompt_logprobs"]) > 1
        assert COUNTED - dict(scrape(server.base_url).values).keys() == set()
        assert (server.memory_bytes() or 0) > 100 << 20
        server.ensure_alive()

        core = [p for p in tree if "EngineCore" in " ".join(p.cmdline())]
        assert core
        core[0].kill()

        def lost() -> bool:
            try:
                server.ensure_alive()
            except EngineLostError:
                return True
            return False

        assert wait_until(lost, timeout_s=30)
    assert gone(tree)


OWNER = """
import json, sys
from pathlib import Path
from whet.core.records.codec import decode
from whet.core.records.engine import ResolvedEngine
from whet.engines import get_engine
resolved = decode(ResolvedEngine, json.loads(sys.argv[1]))
with get_engine("vllm").serve(resolved, log=Path(sys.argv[2])):
    sys.stdin.read()
"""


@pytest.fixture
def owner(resolved: ResolvedEngine, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", OWNER, json.dumps(encode(resolved)), str(tmp_path / "log")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=dict(os.environ)) as process:
        yield process
        process.kill()


@pytest.mark.full
def test_kill_9_while_the_engine_warms_up_leaves_nothing(owner: subprocess.Popen[bytes]) -> None:
    def tree() -> list[psutil.Process]:
        return psutil.Process(owner.pid).children(recursive=True)

    def warming() -> bool:
        try:
            return any("EngineCore" in " ".join(p.cmdline()) for p in tree())
        except psutil.Error:
            return False  # a helper of the start has just ended; the next look tells

    assert wait_until(warming, timeout_s=120)
    family = tree()
    owner.kill()
    assert wait_until(lambda: gone(family), timeout_s=30)


def test_a_forked_server_is_a_server_as_any_other(
    resolved: ResolvedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm_engine(get_engine("vllm"), resolved, log=tmp_path / "parent.log") as engine:
        # As PyTorch does in whet's own process when it quantizes.
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
        with engine.serve(resolved, log=tmp_path / "engine.log") as server:
            assert server.start.forked, (tmp_path / "parent.log").read_text()
            tree = psutil.Process(server.start.pid).children(recursive=True)
            assert any("EngineCore" in " ".join(p.cmdline()) for p in tree)
            facts = read_log(server.log_text())
            assert facts.version == resolved.engine_version
            assert facts.quantized_layers == 8
            parts = start_parts(server.start, facts)
            assert {name for name, seconds in parts.items() if seconds is None} == {
                "compile",
                "graphs",
            }, parts
            weights, *_ = judge_start(resolved, facts, read_declared(server.base_url))
            assert weights.outcome == "proved", weights
            server.ensure_alive()
        assert gone(tree)
        with pytest.raises(psutil.NoSuchProcess):
            psutil.Process(server.start.pid)
