"""SGLang's command line, log, pages, counters and faults, all of 0.5.17.

``sglang_h100*`` is recorded on an H100, ``sglang_cpu*`` on a CPU; the other files are written from
its source.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.engines import test_contract_e2e as contract
from tests.engines.conftest import make_variant
from tests.levers.builders import counters, trial, workload
from whet.client.counters import parse_counters, rename_counters
from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED, PREFIX_HITS
from whet.core.counters import PREFIX_QUERIES as QUERIES
from whet.core.errors import EngineStartError, UsageError
from whet.core.records.engine import Layout, ResolvedEngine, Speculation
from whet.core.records.evidence import Verdict
from whet.core.spec import EngineSpec
from whet.engines import get_engine, get_profile
from whet.engines.compatibility import Installed
from whet.engines.failures import diagnose
from whet.engines.sglang import SglangEngine
from whet.engines.sglang.flags import shipped_flags
from whet.engines.sglang.limits import limitation, not_installed
from whet.engines.sglang.pages import read_declared
from whet.levers import claims, judge_cell, judge_start

RECORDED = Path(__file__).parent / "recorded"
FAKE = Path(__file__).with_name("fake_sglang.py")
PROFILE = get_profile("sglang")
THERE = Installed(version="0.5.17", cpu_build=False)
ARGS = (("max_model_len", 2048), ("max_num_seqs", 64), ("mem_fraction_static", 0.8))
EAGLE = Speculation(method="eagle3", num_tokens=3, draft_path="/checkpoints/eagle3")


def recorded(name: str) -> str:
    return (RECORDED / f"sglang_{name}").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped flags are all that this SGLang has: none is installed here."""
    monkeypatch.setattr("whet.engines.sglang.flags.installed_flags", lambda _python: {})


def resolve(**changes: object) -> ResolvedEngine:
    usual: dict[str, object] = {"weights": "16bit", "scheme": "16bit", "engine_args": ARGS}
    usual |= {"name": "fp16", "model_path": "/checkpoints/target"}
    variant = make_variant(**{**usual, **changes})
    return SglangEngine(lambda _: THERE).resolve(variant, EngineSpec(name="sglang"))


def fp8(**changes: object) -> ResolvedEngine:
    usual: dict[str, object] = {"name": "fp8", "weights": "fp8", "scheme": "FP8"}
    args = (*ARGS, ("kv_cache_dtype", "fp8"))
    usual |= {"model_path": "/checkpoints/fp8", "prefix_cache": True, "speculation": EAGLE}
    return resolve(**{**usual, "engine_args": args, **changes})


def after(made: ResolvedEngine, word: str) -> str:
    return made.argv[made.argv.index(word) + 1]


def test_a_variant_becomes_the_command_line() -> None:
    made = resolve()
    assert made.argv[:3] == (sys.executable, "-m", "sglang.launch_server")
    assert (made.engine_version, made.device, made.served_model_name) == (
        "0.5.17",
        "cuda",
        "target",
    )
    assert after(made, "--model-path") == "/checkpoints/target"
    assert after(made, "--context-length") == "2048"
    assert after(made, "--max-running-requests") == "64"
    assert after(made, "--mem-fraction-static") == "0.8"
    assert {"--enable-metrics", "--enable-cache-report", "--disable-radix-cache"} <= {*made.argv}
    assert "--disable-radix-cache" not in resolve(prefix_cache=True).argv
    assert made.serve_line.startswith("HF_HUB_OFFLINE=1 ")
    assert "--port 30000" in made.serve_line
    assert Path(dict(made.env)["SGLANG_LOGGING_CONFIG_PATH"]).is_file()


def test_names_that_engines_share_become_sglangs() -> None:
    args = (("kv_cache_dtype", "fp8"), ("enforce_eager", True), ("enable_chunked_prefill", False))
    words = resolve(engine_args=args).argv
    assert words[-5:] == (
        *("--kv-cache-dtype", "fp8_e4m3", "--disable-cuda-graph"),
        *("--chunked-prefill-size", "-1"),
    )
    plain = resolve(engine_args=(("enforce_eager", False), ("enable_chunked_prefill", True)))
    assert not {"--disable-cuda-graph", "--chunked-prefill-size"} & {*plain.argv}


@pytest.mark.parametrize(
    ("speculation", "algorithm", "extra"),
    [
        (EAGLE, "EAGLE3", ("--speculative-num-steps", "3")),
        (replace(EAGLE, method="draft_model"), "STANDALONE", ("--speculative-eagle-topk", "1")),
        (
            Speculation(method="ngram", num_tokens=3, draft_path=None),
            "NGRAM",
            ("--speculative-ngram-max-bfs-breadth", "1"),
        ),
    ],
)
def test_k_drafts_are_a_chain_in_a_block_of_k_plus_one(
    speculation: Speculation, algorithm: str, extra: tuple[str, str]
) -> None:
    made = resolve(speculation=speculation)
    assert after(made, "--speculative-algorithm") == algorithm
    assert after(made, "--speculative-num-draft-tokens") == "4"
    assert after(made, extra[0]) == extra[1]
    has_draft = "--speculative-draft-model-path" in made.argv
    assert has_draft is (speculation.draft_path is not None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((("max_num_batched_token", 1),), "SGLang has no flag 'max_num_batched_token'; did you"),
        ((("gpu_memory_utilization", 0.9),), "SGLang has no flag 'gpu_memory_utilization'"),
        ((("disable_radix_cache", True),), "cannot be set here; set the variant's prefix_cache"),
        ((("enable_mixed_chunk", False),), "is a switch; leave it out instead of False"),
    ],
)
def test_flags_that_cannot_be_set(args: tuple[tuple[str, object], ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(engine_args=args)
    assert message in str(caught.value)


def test_the_shipped_flags_are_those_of_the_parser() -> None:
    flags = shipped_flags()
    assert len(flags) > 450
    assert (flags["disable-radix-cache"], flags["mem-fraction-static"]) == (True, False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loras": (("a", "/a"),)}, "adapters on vLLM only"),
        ({"layout": Layout(decode=2)}, "leave layout out"),
        ({"env": (("VLLM_USE_RUST_FRONTEND", "1"),)}, "frontend is a choice of vLLM"),
        ({"engine_args": (("tensor_parallel_size", 2),)}, "on one GPU; leave tensor_parallel_size"),
        ({"speculation": replace(EAGLE, method="mtp")}, "mtp needs vLLM"),
        ({"speculation": replace(EAGLE, options=(("x", 1),))}, "no speculation option on SGLang"),
    ],
)
def test_what_whet_does_not_set_up(change: dict[str, object], reason: str) -> None:
    variant = make_variant(**{"scheme": "16bit", **change})
    assert reason in str(limitation(variant, THERE, gpu=True))


def test_a_head_that_sglang_computes_otherwise_is_refused(tmp_path: Path) -> None:
    variant = resolve(speculation=replace(EAGLE, draft_path=str(tmp_path))).variant
    for before, refused in ((False, False), (True, True)):
        (tmp_path / "config.json").write_text(json.dumps({"norm_before_residual": before}))
        assert ("norm_before_residual" in str(limitation(variant, THERE, gpu=True))) is refused


def test_what_cannot_run_here_says_what_to_do() -> None:
    variant = resolve().variant
    assert limitation(variant, THERE, gpu=True) is None
    assert "needs an NVIDIA GPU" in str(limitation(variant, THERE, gpu=False))
    old = replace(THERE, version="0.5.9")
    assert "older than 0.5.17" in str(limitation(variant, old, gpu=True))
    assert "pip install sglang" in not_installed("python")
    with pytest.raises(EngineStartError, match="SGLang is not installed for"):
        SglangEngine(lambda _: None).version(EngineSpec(name="sglang"))


def test_a_log_gives_layers_attention_cache_and_sizes() -> None:
    facts = PROFILE.read_log(recorded("eagle3.log"))
    assert facts.weight_kernels == ("CompressedTensorsW8A8Fp8 for 128 layers",)
    assert (facts.quantized_layers, facts.unquantized_layers) == (128, 0)
    assert (facts.attention_backend, facts.prefix_cache_enabled) == ("fa3", True)
    assert (facts.kv_cache_tokens, facts.kv_cache_dtype) == (809504, "fp8_e4m3")
    assert facts.kv_memory_gib == pytest.approx(49.4)
    assert (facts.max_model_len, facts.batched_tokens, facts.load_s) == (2048, 8192, 4.02)
    assert (facts.graphs_captured, facts.eager) == (True, None)
    assert dict(facts.settings) == {
        "max_num_seqs": "64",
        "enable_chunked_prefill": "True",
        "speculative_config.method": "eagle3",
        "speculative_config.num_speculative_tokens": "3",
    }
    (notice,) = facts.notices
    assert notice.startswith("Using FP8 KV cache but no scaling factors provided")


def test_a_recorded_log_of_a_cpu_is_read() -> None:
    facts = PROFILE.read_log(recorded("cpu.log"))
    assert (facts.attention_backend, facts.prefix_cache_enabled) == ("torch_native", True)
    assert (facts.quantized_layers, facts.unquantized_layers) == (0, 1)
    assert (facts.kv_cache_tokens, facts.kv_cache_dtype) == (4096, None)
    assert (facts.max_model_len, facts.batched_tokens, facts.load_s) == (256, 2048, 0.09)
    assert facts.notices == ()


def test_a_recorded_log_of_an_h100_is_read() -> None:
    facts = PROFILE.read_log(recorded("h100.log"))
    assert (facts.attention_backend, facts.prefix_cache_enabled) == ("fa3", True)
    assert (facts.quantized_layers, facts.weight_kernels) == (0, ())
    assert (facts.kv_cache_tokens, facts.kv_cache_dtype) == (141143, None)
    assert (facts.max_model_len, facts.batched_tokens, facts.load_s) == (2048, 8192, 1.97)
    assert (facts.graphs_captured, facts.notices) == (True, ())


def test_an_empty_log_says_nothing() -> None:
    facts = PROFILE.read_log("")
    assert (facts.attention_backend, facts.quantized_layers, facts.eager) == (None, None, None)
    assert (facts.weight_kernels, facts.settings, facts.notices) == ((), (), ())


def verdicts(made: ResolvedEngine, log: str) -> dict[str, Verdict]:
    def answer(_url: str, path: str, **_options: object) -> str:
        return recorded("server_info.json") if path == "/server_info" else '{"data": []}'

    with patch("whet.engines.probe.get_text", answer):
        declared = read_declared("http://127.0.0.1:1")
    return {each.claim.kind: each for each in judge_start(made, PROFILE.read_log(log), declared)}


def test_every_claim_of_a_start_is_proved() -> None:
    judged = verdicts(fp8(), recorded("eagle3.log"))
    assert {kind: verdict.outcome for kind, verdict in judged.items()} == {
        "weights": "proved",
        "settings": "proved",
        "kv_cache": "proved",
        "attention": "proved",
    }
    assert "CompressedTensorsW8A8Fp8 for 128 layers" in judged["weights"].observed
    assert judged["attention"].observed == "fa3 runs"
    assert "stored in fp8_e4m3" in judged["kv_cache"].observed


@pytest.mark.parametrize(
    ("kind", "old", "new", "outcome"),
    [
        ("weights", "W8A8Fp8", "W8A16Fp8", "contradicted"),
        ("weights", "Using scheme", "A scheme", "unproved"),
        ("attention", "attention_backend='fa3', decode", "attention_backend=None, decode", None),
        (
            "attention",
            "attention_backend='fa3', decode",
            "attention_backend='triton', decode",
            None,
        ),
        ("kv_cache", "torch.float8_e4m3fn", "torch.bfloat16", "unproved"),
        ("prefix_cache", "disable_radix_cache=False", "disable_radix_cache=True", "contradicted"),
        ("settings", "max_running_requests=64", "max_running_requests=48", "contradicted"),
    ],
)
def test_a_log_that_says_otherwise(kind: str, old: str, new: str, outcome: str | None) -> None:
    log = recorded("eagle3.log")
    assert old in log
    assert verdicts(fp8(), log.replace(old, new))[kind].outcome == (outcome or "unproved")


def test_16_bit_weights_are_proved_and_contradict_a_scheme() -> None:
    log = recorded("plain.log")
    assert verdicts(resolve(), log)["weights"].outcome == "proved"
    assert verdicts(fp8(), log)["weights"].outcome == "contradicted"
    assert verdicts(resolve(), recorded("eagle3.log"))["weights"].outcome == "contradicted"


def test_no_speed_is_claimed_without_the_best_attention() -> None:
    log = recorded("plain.log").replace("'fa3', decode", "'triton', decode")
    wanted = resolve(engine_args=(*ARGS, ("attention_backend", "triton")))
    verdict = verdicts(wanted, log)["attention"]
    assert verdict.outcome == "unproved"
    assert verdict.observed == "triton runs, which says nothing of how fast SGLang is"
    fa3 = resolve(engine_args=(*ARGS, ("attention_backend", "fa3")))
    assert verdicts(fa3, recorded("plain.log"))["attention"].outcome == "proved"
    assert verdicts(fa3, log)["attention"].outcome == "contradicted"
    assert [each.kind for each in claims(resolve())].count("attention") == 1


def test_counters_are_read_and_summed_under_the_common_names() -> None:
    names = dict(PROFILE.counters_of(fp8(speculation=replace(EAGLE, num_tokens=4)).variant))
    values = rename_counters(dict(parse_counters(recorded("metrics.txt"))), names)
    assert (values[GENERATED], values[QUERIES], values[PREFIX_HITS]) == (200, 1000, 400)
    assert (values[DRAFTS], values[DRAFT_TOKENS], values[ACCEPTED]) == (60, 240, 130)
    plain = {k: v for k, v in parse_counters(recorded("metrics.txt")) if "spec" not in k}
    assert not {DRAFTS, DRAFT_TOKENS, ACCEPTED} & {*rename_counters(plain, names)}


def test_recorded_counters_give_the_cached_tokens_of_the_responses() -> None:
    names = dict(PROFILE.counters_of(resolve().variant))
    values = rename_counters(dict(parse_counters(recorded("cpu_metrics.txt"))), names)
    assert (values[GENERATED], values[QUERIES], values[PREFIX_HITS]) == (112, 209, 120)
    assert DRAFTS not in values


@pytest.mark.parametrize(("hits", "outcome"), [(0, "proved"), (40, "contradicted")])
def test_without_a_cache_no_token_may_come_from_one(hits: int, outcome: str) -> None:
    before = counters(queries=0, hits=0, generated=0)
    cell = [trial(before, counters(queries=200, hits=hits, generated=40))]
    judged = {each.claim.kind: each for each in judge_cell(resolve(), cell, workload())}
    assert judged["prefix_cache"].outcome == outcome
    assert judged["prefix_cache"].sources[0].startswith("sglang:prompt_tokens_total - ")
    assert judged["speculation"].outcome == "proved"


def test_pages_give_resolved_settings_and_the_models_name() -> None:
    cards = json.dumps({"data": [{"id": "fp8", "max_model_len": 2048}]})
    pages = {"/server_info": recorded("server_info.json"), "/v1/models": cards}
    with patch("whet.engines.probe.get_text", lambda _url, path, **_options: pages[path]):
        declared = read_declared("http://127.0.0.1:1")
    assert (declared.version, declared.models) == ("0.5.17", ("fp8",))
    assert dict(declared.cache) == {"cache_dtype": "fp8_e4m3", "enable_prefix_caching": "True"}
    assert declared.setting("max_num_seqs") == "64"
    assert declared.setting("max_model_len") == "2048"


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("port", "port", "run again"),
        ("memory", "no_memory_left", "raise mem_fraction_static"),
        ("oom", "out_of_memory", "lower mem_fraction_static or max_num_seqs"),
        ("fa3", "attention", "FlashAttention 3 is missing"),
        ("arch", "architecture", "does not know the architecture FooForCausalLM"),
        ("flag", "flag", "unrecognized arguments: --frobnicate"),
        ("scheme", "scheme", "choose another quantization scheme"),
    ],
)
def test_a_failed_start_is_one_sentence_with_the_fix(name: str, kind: str, words: str) -> None:
    failure = diagnose(recorded(f"{name}.log"), PROFILE.failures.signs)
    assert failure is not None
    assert failure.kind == kind
    assert words in failure.sentence


def test_a_server_that_ended_itself_is_not_taken_for_one_out_of_memory(
    scripted: ResolvedEngine, tmp_path: Path
) -> None:
    words = "ValueError: no such thing\\nReceived sigquit from a child process."
    script = f"import os; print('{words}', flush=True); os.kill(os.getpid(), 9)"
    made = replace(scripted, argv=(sys.executable, "-c", script))
    with (
        pytest.raises(EngineStartError, match="it reported: ValueError: no such thing"),
        get_engine("sglang").serve(made, log=tmp_path / "log.txt"),
    ):
        pass


@pytest.fixture
def scripted(tmp_path: Path) -> ResolvedEngine:
    """A resolved variant whose process says what SGLang says."""
    folder = tmp_path / "target"
    folder.mkdir()
    made = resolve(model_path=str(folder))
    argv = (sys.executable, str(FAKE), "sglang_plain.log", "{port}", str(folder))
    return replace(made, argv=argv, device="cpu")


def test_the_contract_of_engines_holds(scripted: ResolvedEngine, tmp_path: Path) -> None:
    contract.test_it_comes_up_proves_itself_counts_and_ends(scripted, tmp_path)


def test_a_missing_checkpoint_is_a_sentence(scripted: ResolvedEngine, tmp_path: Path) -> None:
    contract.test_weights_that_are_not_there_are_a_sentence(scripted, tmp_path)


def test_a_dead_server_is_noticed(scripted: ResolvedEngine, tmp_path: Path) -> None:
    contract.test_a_server_that_dies_is_noticed(scripted, tmp_path)


def test_the_registry_has_it() -> None:
    assert isinstance(get_engine("sglang"), SglangEngine)
