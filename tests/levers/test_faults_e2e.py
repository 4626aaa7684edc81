"""Faults planted in real vLLM servers on this machine's CPU, and every one of them noticed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.levers.proxy import Rewrite, rewriting_proxy
from whet.core.load import Load
from whet.core.provenance import cpu_dtype
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.records.evidence import Declared, EngineFacts, Verdict
from whet.core.records.load import PlannedRequest, TrialRecord, WorkloadFacts
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.engines import get_engine
from whet.engines.probe import request
from whet.engines.vllm import find_installed
from whet.engines.vllm.log import read_log
from whet.engines.vllm.server_info import read_declared
from whet.levers import judge_cell, judge_start
from whet.load import TrialPlan, Workload, run_trial
from whet.load.plan import describe_requests, to_call

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

BLOCK = 32
ARGS = (
    ("max_model_len", 1024),
    ("max_num_seqs", 8),
    ("enforce_eager", True),
    ("block_size", BLOCK),
    ("dtype", cpu_dtype()),
)
PLAIN = Variant(
    name="v",
    weights="16bit",
    scheme="16bit",
    model_path=str(pair_paths()[0]),
    speculation=None,
    prefix_cache=False,
    engine_args=ARGS,
    env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
)
NGRAM = Speculation(method="ngram", num_tokens=3, draft_path=None)
_NUMBERS = count()


@dataclass(frozen=True)
class Live:
    """A server that runs, and what it said of itself when it came up."""

    resolved: ResolvedEngine
    url: str
    model: str
    facts: EngineFacts
    declared: Declared

    def start(self, kind: str, **claimed: object) -> Verdict:
        """The start's verdict on one claim of a variant that says of itself what ``claimed`` has"""
        other = self.claiming(**claimed)
        (found,) = [
            verdict
            for verdict in judge_start(other, self.facts, self.declared)
            if verdict.claim.kind == kind
        ]
        return found

    def cell(
        self, kind: str, trial: TrialRecord, facts: WorkloadFacts, **claimed: object
    ) -> Verdict:
        """The verdict of the counters."""
        verdicts = judge_cell(self.claiming(**claimed), [trial], facts)
        return next(verdict for verdict in verdicts if verdict.claim.kind == kind)

    def claiming(self, **claimed: object) -> ResolvedEngine:
        return replace(self.resolved, variant=replace(self.resolved.variant, **claimed))

    def trial(self, workload: Workload, *, url: str | None = None, lora: str = "") -> TrialRecord:
        """Four requests at a time, after a warm-up by the same prefixes and other ends."""
        calls = [to_call(each) for each in workload.requests]
        calls = [replace(call, extra={**call.extra, "model": lora}) for call in calls]
        plan = TrialPlan(
            variant="v",
            load=Load.at(4),
            trial=0,
            workload=workload,
            warmup=() if lora else texts(4, shared=True),
            calls=tuple(calls) if lora else None,
            workers=1,
        )
        return run_trial(
            url or self.url, self.model, plan=plan, memory=lambda: None, alive=lambda: None
        )


def texts(number: int, *, shared: bool) -> tuple[PlannedRequest, ...]:
    """Prompts of five blocks, the first four of them shared or each its own."""
    tokenizer = Tokenizer.from_file(str(pair_paths()[0] / "tokenizer.json"))
    made = []
    for index in range(number):
        start = "all desks" if shared else f"desk {next(_NUMBERS)} alone"
        system = f"For {start}: you answer questions about orders, parcels and refunds. " * 30
        user = f"Ticket {next(_NUMBERS)}: where is my parcel? I have waited for days now. " * 9
        ids = tokenizer.encode(system).ids[: 4 * BLOCK] + tokenizer.encode(user).ids[:BLOCK]
        made.append(
            PlannedRequest(
                index=index,
                prompt_token_ids=tuple(ids),
                max_tokens=16,
                prefix_id="all" if shared else None,
                shared_tokens=4 * BLOCK if shared else 0,
            )
        )
    return tuple(made)


def workload(number: int = 8, *, shared: bool = True) -> Workload:
    requests = texts(number, shared=shared)
    return Workload(requests=requests, facts=describe_requests(requests, block_size=BLOCK, seed=0))


def served(variant: Variant, log: Path) -> Iterator[Live]:
    engine = get_engine("vllm")
    resolved = engine.resolve(variant, EngineSpec(ready_timeout_s=900.0))
    with engine.serve(resolved, log=log) as server:
        yield Live(
            resolved=resolved,
            url=server.base_url,
            model=server.model_name,
            facts=read_log(server.log_text()),
            declared=read_declared(server.base_url),
        )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """16 bit, though an integer quantization and another attention backend were asked for."""
    wish = (
        ("dtype", "bfloat16"),  # the quantization that does nothing insists on 16 bits
        ("attention_backend", "FLASH_ATTN"),
        ("quantization", "int8_per_channel_weight_only"),
    )
    log = tmp_path_factory.mktemp("plain") / "engine.log"
    yield from served(replace(PLAIN, engine_args=tuple((dict(ARGS) | dict(wish)).items())), log)


@pytest.fixture(scope="module")
def plain_trial(plain: Live) -> tuple[TrialRecord, WorkloadFacts]:
    load = workload()
    return plain.trial(load), load.facts


def test_said_awq_served_in_16_bit(plain: Live) -> None:
    verdict = plain.start("weights", weights="awq", scheme="W4A16", engine_args=())
    assert verdict.outcome == "contradicted"
    assert "no layer is quantized" in verdict.observed
    assert plain.start("weights", engine_args=()).outcome == "proved"  # what it is


def test_a_quantization_flag_that_does_nothing(plain: Live) -> None:
    assert plain.declared.setting("model_config.quantization") == "int8_per_channel_weight_only"
    assert plain.start("weights").outcome == "contradicted"


def test_an_attention_backend_that_was_refused_and_is_still_reported(plain: Live) -> None:
    assert "flash" in (plain.declared.setting("attention_config.backend") or "").lower()
    verdict = plain.start("attention")
    assert verdict.outcome == "contradicted"
    assert "Cannot use" in verdict.observed


def test_the_attention_backend_that_does_run_is_proved_by_its_class_alone(plain: Live) -> None:
    quiet = replace(plain, facts=replace(plain.facts, notices=()))
    on_cpu = quiet.start("attention", engine_args=(("attention_backend", "CPU_ATTN"),))
    assert on_cpu.outcome == "proved"


def test_settings_that_were_resolved_otherwise(plain: Live) -> None:
    asked = (("max_num_seqs", 64), ("max_model_len", 1024))
    verdict = plain.start("settings", engine_args=asked, own_args=("max_num_seqs",))
    assert verdict.outcome == "contradicted"
    assert "max_num_seqs=64" in verdict.observed
    assert plain.start("settings").outcome == "proved"


def test_a_kv_cache_said_to_be_fp8(plain: Live) -> None:
    verdict = plain.start("kv_cache", engine_args=(("kv_cache_dtype", "fp8"),))
    assert verdict.outcome == "contradicted"
    assert "2.00 bytes" in verdict.observed  # the pool's memory over its tokens: 16 bits


def test_graphs_that_were_not_there(plain: Live) -> None:
    verdict = plain.start("execution", engine_args=(("enforce_eager", False),))
    assert (verdict.outcome, verdict.observed) == ("contradicted", "the engine runs eagerly")


def test_two_ranks_and_two_engines_that_are_one(plain: Live) -> None:
    asked = (("tensor_parallel_size", 2), ("data_parallel_size", 2))
    verdict = plain.start("parallelism", engine_args=asked)
    assert verdict.outcome == "contradicted"
    assert "tensor_parallel_size is 1" in verdict.observed
    assert "data_parallel_size is 1" in verdict.observed


def test_an_adapter_that_was_never_loaded(plain: Live) -> None:
    loras = (("billing", "/nowhere"),)
    assert plain.start("lora", loras=loras).outcome == "contradicted"
    body = {"model": "billing", "prompt": "Hello", "max_tokens": 1}
    status, _ = request(plain.url, "/v1/completions", body=body, timeout_s=60)
    assert status == 404
    load = workload(4)
    trial = plain.trial(load, lora="billing")
    assert {event.error for event in trial.requests} == {"http_404"}
    assert plain.cell("lora_requests", trial, load.facts, loras=loras).outcome == "unproved"
    # A window without one token says nothing of the other levers either.
    assert plain.cell("speculation", trial, load.facts).outcome == "unproved"
    assert plain.cell("prefix_cache", trial, load.facts).outcome == "unproved"


def test_a_prefix_cache_that_is_off(
    plain: Live, plain_trial: tuple[TrialRecord, WorkloadFacts]
) -> None:
    assert plain.start("prefix_cache", prefix_cache=True).outcome == "contradicted"
    verdict = plain.cell("prefix_cache", *plain_trial, prefix_cache=True)
    assert verdict.outcome == "contradicted"
    assert "no token was looked up" in verdict.observed
    assert plain.cell("prefix_cache", *plain_trial).outcome == "proved"  # off, as it says


def test_speculation_that_does_not_exist(
    plain: Live, plain_trial: tuple[TrialRecord, WorkloadFacts]
) -> None:
    verdict = plain.cell("speculation", *plain_trial, speculation=NGRAM)
    assert verdict.outcome == "unproved"
    assert "no data" in verdict.observed
    assert plain.start("settings", speculation=NGRAM).outcome != "proved"
    assert plain.cell("speculation", *plain_trial).outcome == "proved"  # none, as it says


def test_static_batches_that_were_a_closed_loop(
    plain: Live, plain_trial: tuple[TrialRecord, WorkloadFacts]
) -> None:
    assert plain.cell("batching", *plain_trial, batching="static").outcome == "contradicted"
    trial, facts = plain_trial
    relabelled = replace(trial, loop="static", load=Load.at(2))  # four were in flight
    assert plain.cell("batching", relabelled, facts, batching="static").outcome == "contradicted"


@pytest.fixture(scope="module")
def permuted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A prefix cache that works, and a draft whose ids stand for other words."""
    folder = tmp_path_factory.mktemp("permuted")
    variant = replace(
        PLAIN,
        prefix_cache=True,
        speculation=Speculation(
            method="draft_model", num_tokens=3, draft_path=str(write_permuted(folder / "draft"))
        ),
    )
    yield from served(variant, folder / "engine.log")


def write_permuted(folder: Path) -> Path:
    """The bundled draft with the rows of its vocabulary in another order, its tokenizer kept."""
    folder.mkdir()
    draft = pair_paths()[1]
    tensors = load_file(draft / "model.safetensors")
    vocabulary = json.loads((draft / "config.json").read_text())["vocab_size"]
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(1))
    for name, tensor in tensors.items():
        if "embed_tokens" in name or "lm_head" in name:
            tensors[name] = tensor[order].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in draft.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_draft_that_never_accepts(permuted: Live) -> None:
    load = workload()
    verdict = permuted.cell("speculation", permuted.trial(load), load.facts)
    assert permuted.start("settings").outcome == "proved"  # it runs just as it was asked
    assert verdict.outcome in ("contradicted", "unproved"), verdict
    assert "vocabulary" in verdict.observed
    assert re.search(r"\d drafts", verdict.observed)


def test_a_cache_that_works_is_proved_and_its_twin_that_says_off_is_not(permuted: Live) -> None:
    load = workload()
    trial = permuted.trial(load)
    verdict = permuted.cell("prefix_cache", trial, load.facts)
    assert verdict.outcome == "proved", verdict
    assert load.facts.expected_hit_rate == 0.8  # four blocks of five
    assert permuted.cell("prefix_cache", trial, load.facts, prefix_cache=False).outcome == (
        "contradicted"
    )
    assert permuted.cell("speculation", trial, load.facts, speculation=None).outcome == (
        "contradicted"
    )


def test_a_workload_that_cannot_hit(permuted: Live) -> None:
    load = workload(shared=False)
    trial = permuted.trial(load)
    claimed = replace(load.facts, expected_hit_rate=0.6)
    assert permuted.cell("prefix_cache", trial, claimed).outcome == "contradicted"
    honest = permuted.cell("prefix_cache", trial, load.facts)  # built for 0: proves nothing
    assert honest.outcome == "unproved"
    assert "cannot hit" in honest.observed
    again = permuted.cell("prefix_cache", permuted.trial(load), load.facts)
    assert again.outcome == "contradicted"
    assert "an earlier trial's entries" in again.observed


def renamed(_path: str, page: str) -> str:
    return page.replace("vllm:prefix_cache_hits_total", "gateway_prefix_cache_hits_total")


def dropped(_path: str, page: str) -> str:
    return "\n".join(line for line in page.splitlines() if "prefix_cache_queries" not in line)


def off(_path: str, page: str) -> str:
    page = page.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    return re.sub(r'"enable_prefix_caching": ?true', '"enable_prefix_caching": false', page)


def kept() -> Rewrite:
    """A gateway that keeps the first page that it saw of each path."""
    first: dict[str, str] = {}
    return first.setdefault


def in_turn() -> Rewrite:
    """A gateway that asks another replica each time."""
    turns = count(1)
    start = r"(?m)^process_start_time_seconds .*$"
    return lambda _path, page: re.sub(start, f"process_start_time_seconds {next(turns)}", page)


@pytest.mark.parametrize(
    ("rewrite", "word"),
    [
        (renamed, "vllm:prefix_cache_hits_total is missing"),
        (dropped, "vllm:prefix_cache_queries_total is missing"),
        (kept(), "another server answered"),
        (in_turn(), "another process's"),
    ],
    ids=["hits renamed", "queries dropped", "metrics kept", "replicas in turn"],
)
def test_metrics_changed_on_the_way_prove_nothing(
    permuted: Live, rewrite: Rewrite, word: str
) -> None:
    load = workload()
    with rewriting_proxy(permuted.url, rewrite) as url:
        trial = permuted.trial(load, url=url)
    assert all(event.error is None for event in trial.requests)
    verdict = permuted.cell("prefix_cache", trial, load.facts)
    assert verdict.outcome == "unproved", verdict
    assert word in verdict.observed


def test_a_cache_that_is_off_behind_a_proxy(permuted: Live) -> None:
    with rewriting_proxy(permuted.url, off) as url:
        declared = read_declared(url)
    behind = replace(permuted, declared=declared, facts=replace(permuted.facts, notices=()))
    verdict = behind.start("prefix_cache")
    assert verdict.outcome == "contradicted"
    assert not [
        v.claim
        for v in judge_start(permuted.resolved, permuted.facts, permuted.declared)
        if v.claim.kind == "prefix_cache"
    ]
