"""Two servers of real vLLM behind a router, on a CPU: answers as one server's, and who worked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from whet.client import scrape
from whet.core.protocols import Server
from whet.core.records.engine import Layout, Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.engines import get_engine
from whet.engines.probe import request
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

PLAIN = Variant(
    name="v",
    weights="16bit",
    scheme="16bit",
    model_path=str(pair_paths()[0]),
    speculation=None,
    prefix_cache=False,
    engine_args=(("max_model_len", 1024), ("enforce_eager", True), ("block_size", 32)),
    env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
)
PROMPTS = [f"Parcel {n} has not arrived. " + "Please look for it. " * 20 for n in range(4)]


@contextmanager
def serving(layout: Layout | None, log: Path) -> Iterator[Server]:
    engine = get_engine("vllm")
    resolved = engine.resolve(replace(PLAIN, layout=layout), EngineSpec(ready_timeout_s=300.0))
    with engine.serve(resolved, log=log) as server:
        yield server


def answers(server: Server) -> list[str]:
    texts = []
    for prompt in PROMPTS:
        ask = {"model": server.model_name, "prompt": prompt, "max_tokens": 12, "temperature": 0}
        status, text = request(server.base_url, "/v1/completions", body=ask, timeout_s=60)
        assert status == 200, text
        texts.append(text.split('"text":"')[1].split('"')[0])
    return texts


def test_layouts_answer_as_one_server_and_show_who_worked(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))  # of other files in this process
    with serving(None, tmp_path / "one.log") as server:
        expected = answers(server)
    with serving(Layout(decode=2), tmp_path / "two.log") as server:
        assert answers(server) == expected
        counters = scrape(server.base_url)
        shares = [
            counters.get(f'router:generation_tokens_total{{source="decode{n}"}}') for n in (0, 1)
        ]
        assert min(share or 0 for share in shares) >= 24
    apart = Layout(prefill=1, decode=1, connector="ExampleConnector")
    with serving(apart, tmp_path / "apart.log") as server:
        assert answers(server) == expected
        counters = scrape(server.base_url)
        name = "vllm:prompt_tokens_by_source_total"
        received = counters.get(f'{name}{{source="external_kv_transfer"}}') or 0
        computed = counters.get(f'{name}{{source="local_compute"}}') or 0
        assert received > computed
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [each for each in left if each.is_running()]
