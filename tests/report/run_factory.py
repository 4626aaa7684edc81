"""A synthetic run directory, made through the real records: five variants at five batch sizes.

One cell failed, one claim is contradicted, one p95 is not certified. With ``hostile`` the texts
that come from outside (model output, names, log lines) try to break out of every format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from whet.core.provenance import Device, Environment
from whet.core.records import (
    BreakEven,
    CalibrationFacts,
    CellSummary,
    Claim,
    ClientHealth,
    Comparison,
    ComparisonSet,
    Counters,
    Decision,
    EngineFacts,
    Estimate,
    Excluded,
    MatrixEntry,
    ModelFacts,
    QualityRecord,
    QuantizedCheckpoint,
    Recommendation,
    RequestEvent,
    ResolvedEngine,
    Speculation,
    StartFacts,
    StoredWeights,
    TaskAnswer,
    TaskExample,
    TaskScore,
    TokenizerIdentity,
    TrialRecord,
    UnitError,
    Variant,
    Verdict,
    VerdictSet,
    WorkloadFacts,
)
from whet.core.spec import Spec, parse_spec
from whet.core.store import RunStore, write_json

BATCH_SIZES = (1, 4, 8, 16, 32)
VARIANTS = ("fp16", "awq", "awq+spec", "awq+cache", "awq+spec+cache")
SCRIPT = "<script>alert('owned')</script>"
HOSTILE = (
    f"{SCRIPT} | `tick` [link](javascript:alert(1)) {{{{ 7*7 }}}} \x1b[31mred\x1b[0m \u202eevil"
)
FAILED = ("awq+spec", 32)
CONTRADICTED = ("awq+cache", 16)
PRICE = 2.49


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """The strings that a foreign hand may have written."""

    tier: str = "NVIDIA H100 80GB"
    path: str = "/models/demo-target"
    answer: str = '{"order": "A-1041", "status": "shipped"'
    log_line: str = "INFO Using MarlinLinearKernel for CompressedTensorsWNA16"
    failure: str = (
        "the engine ran out of device memory at 32 requests; lower gpu_memory_utilization"
    )
    task: str = "json_extraction"


NASTY = Texts(
    tier=f"H100 {HOSTILE}",
    path=f"/models/{HOSTILE}",
    answer=f"=HYPERLINK(1) {HOSTILE}",
    log_line=f"INFO {HOSTILE}",
    failure=f"=cmd|' /C calc'!A0 {HOSTILE}",
    task=f"json {HOSTILE}",
)


def make_run(root: Path, *, hostile: bool = False, stop_after: int | None = None) -> RunStore:
    """Write a run below ``root``; ``stop_after`` cells leaves it without a decision."""
    texts = NASTY if hostile else Texts()
    spec = make_spec(root, texts)
    with RunStore.open(root) as store:
        (root / "spec.yaml").write_text(yaml.safe_dump({"name": spec.name}), encoding="utf-8")
        write_json(root / "resolved_spec.json", spec.model_dump(mode="json"))
        write_json(root / "environment.json", environment(texts))
        store.put("models", "target", model(texts, 7_240_000_000, 32))
        store.put("models", "draft", model(texts, 1_100_000_000, 8))
        store.put("quantized", "awq", quantized(texts))
        _put_cells(store, texts, stop_after)
        if stop_after is None:
            _put_conclusions(store, texts)
    return RunStore.read(root)


def make_spec(root: Path, texts: Texts) -> Spec:
    """The spec with the standard five variants."""
    data = {
        "name": "support-desk",
        "model": {"target": "org/target", "draft": "org/draft"},
        "hardware": {
            "tier": texts.tier,
            "price_usd_per_hour": PRICE,
            "price_source": "list price, on demand",
        },
    }
    return parse_spec(data, base=root)


def _put_cells(store: RunStore, texts: Texts, stop_after: int | None) -> None:
    done = 0
    for name in VARIANTS:
        if stop_after is not None and done >= stop_after:
            return
        store.put("variants", name, engine(name, texts))
        store.put(
            "starts",
            name,
            StartFacts(
                variant=name, ready_s=41.8, canary_text="ok", port=41231, pid=77, attempts=1
            ),
        )
        store.put("facts", name, facts(name, texts))
        for size in BATCH_SIZES:
            if stop_after is not None and done >= stop_after:
                return
            done += 1
            store.put("workloads", f"b{size:03d}-t0", workload(size))
            store.put("trials", f"{name}--b{size:03d}-t0", trial(name, size, texts))
            status = "failed" if (name, size) == FAILED else "complete"
            store.put("cells", f"{name}--b{size:03d}", cell(name, size, texts), status=status)


def _put_conclusions(store: RunStore, texts: Texts) -> None:
    for name in VARIANTS:
        store.put("quality", name, quality(name, texts))
        store.put("verdicts", name, VerdictSet(variant=name, verdicts=tuple(verdicts(name, texts))))
    store.put("comparisons", "all", comparisons())
    store.put("decision", "decision", decision(texts))


def around(value: float, spread: float, samples: int, *, certified: bool = True) -> Estimate:
    """An estimate with a symmetric interval."""
    return Estimate(
        value=value,
        low=value * (1 - spread),
        high=value * (1 + spread),
        samples=samples,
        certified=certified,
    )


def speed(name: str, size: int) -> float:
    """Output tokens per second of a cell: a saturating curve, speculation paying at small sizes."""
    awq = name.startswith("awq")
    alone, most = (118.0, 3900.0) if awq else (62.0, 2350.0)
    gain = 1.85 - 0.052 * size if "spec" in name else 1.0
    cache = 1.14 if "cache" in name else 1.0
    return alone * size / (1 + alone * size / most) * max(gain, 0.82) * cache


def ttft(name: str, size: int) -> float:
    """Median time to first token in ms."""
    slow = 1.0 if name.startswith("awq") else 1.25
    cache = 0.42 if "cache" in name else 1.0
    return (38.0 + 9.5 * size) * slow * cache * (1.12 if "spec" in name else 1.0)


def cell(name: str, size: int, texts: Texts) -> CellSummary:
    """One cell; the failed one holds no figure."""
    samples = max(64, size * 8)
    failed = (name, size) == FAILED
    tps, first = speed(name, size), ttft(name, size)
    cost = PRICE / 3600 / tps * 1e6

    def value(x: float, spread: float = 0.03, *, certified: bool = True) -> Estimate | None:
        return None if failed else around(x, spread, samples, certified=certified)

    return CellSummary(
        variant=name,
        batch_size=size,
        status="failed" if failed else "complete",
        trials=0 if failed else 3,
        requests=0 if failed else samples,
        errors=7 if failed else 0,
        ttft_p50_ms=value(first, 0.04),
        ttft_p95_ms=value(first * 2.1, 0.11, certified=samples >= 130),
        tpot_p50_ms=value(1000 * size / tps),
        tpot_p95_ms=value(1350 * size / tps, 0.06),
        e2e_p50_ms=value(first + 128_000 * size / tps),
        e2e_p95_ms=value(2.1 * first + 150_000 * size / tps),
        itl_p50_ms=value(950 * size / tps),
        tps_mean=value(tps),
        rps_mean=value(tps / 128),
        goodput_rps=value(tps / 131),
        cost_per_1m_tokens=value(cost),
        memory_gb=None if failed else (19.4 if name.startswith("awq") else 31.7) + size / 16,
        memory_kind="device",
        acceptance_length=3.12 - size / 200 if "spec" in name and not failed else None,
        prefix_hit_rate=0.582 if "cache" in name and not failed else None,
        expected_hit_rate=0.6 if "cache" in name else None,
        window_s=None if failed else 61.0,
        warmup_excluded=20,
        failure=texts.failure if failed else None,
    )


def engine(name: str, texts: Texts) -> ResolvedEngine:
    """A variant as the engine was told of it."""
    awq, spec, cache = name.startswith("awq"), "spec" in name, "cache" in name
    path = f"{texts.path}-awq" if awq else texts.path
    line = f"vllm serve {path} --max-model-len 4096"
    line += "" if cache else " --no-enable-prefix-caching"
    line += " --speculative-config '{\"num_speculative_tokens\": 4}'" if spec else ""
    return ResolvedEngine(
        variant=Variant(
            name=name,
            weights="awq" if awq else "16bit",
            scheme="W4A16" if awq else "16bit",
            model_path=path,
            speculation=Speculation(method="draft_model", num_tokens=4, draft_path="/models/draft")
            if spec
            else None,
            prefix_cache=cache,
        ),
        engine="vllm",
        engine_version="0.29.0",
        device="cuda",
        served_model_name="whet",
        argv=("vllm", "serve", path, "--port", "{port}"),
        env=(("VLLM_USE_V1", "1"),),
        serve_line=line,
        ready_timeout_s=900.0,
    )


def facts(name: str, texts: Texts) -> EngineFacts:
    """What the start-up log said."""
    awq = name.startswith("awq")
    return EngineFacts(
        version="0.29.0",
        weight_kernels=(texts.log_line.split(" for ")[0].removeprefix("INFO Using "),)
        if awq
        else (),
        quantized_layers=128 if awq else 0,
        unquantized_layers=1,
        attention_backend="FLASH_ATTN",
        kv_cache_tokens=412_000,
        prefix_cache_enabled="cache" in name,
        async_scheduling=True,
        notices=(texts.log_line,),
    )


def verdicts(name: str, texts: Texts) -> Iterator[Verdict]:
    """Evidence for what the variant claims; the cache's claim fails at one batch size."""
    weights = "4-bit Marlin kernel" if name.startswith("awq") else "16-bit weights"
    yield Verdict(
        variant=name,
        batch_size=None,
        claim=Claim(kind="weights", statement=weights, expected="the log names it", per_cell=False),
        outcome="proved",
        observed="MarlinLinearKernel for 128 layers" if "awq" in name else "no quantized layer",
        sources=(texts.log_line,),
    )
    for size in BATCH_SIZES:
        if "spec" in name:
            failed = (name, size) == FAILED
            yield Verdict(
                variant=name,
                batch_size=size,
                claim=Claim(
                    kind="speculation",
                    statement="speculation accepts tokens",
                    expected="drafted and accepted tokens rise in the timed window",
                    per_cell=True,
                ),
                outcome="unproved" if failed else "proved",
                observed="no counters: the engine died" if failed else "2.1 of 4 drafts accepted",
                sources=("vllm:spec_decode_num_accepted_tokens_total 1200 → 9310",),
            )
        if "cache" in name:
            wrong = (name, size) == CONTRADICTED
            yield Verdict(
                variant=name,
                batch_size=size,
                claim=Claim(
                    kind="prefix_cache",
                    statement="prefix cache hits",
                    expected="the hit rate is within 10 points of 60.0 %",
                    per_cell=True,
                ),
                outcome="contradicted" if wrong else "proved",
                observed="hit rate 31.0 %" if wrong else "hit rate 58.2 %",
                sources=("vllm:prefix_cache_hits_total 0 → 88120",),
            )


def quality(name: str, texts: Texts) -> QualityRecord:
    """Perplexity and two tasks; the quantized variants lose 0.6 %."""
    awq = name.startswith("awq")
    ratio = 1.006 if awq else 1.0
    return QualityRecord(
        variant=name,
        baseline="fp16",
        perplexity=around(6.41 * ratio, 0.02, 200),
        perplexity_ratio=Estimate(
            value=ratio, low=1.0032 if awq else 1.0, high=1.0088 if awq else 1.0, samples=200
        ),
        nll=((412.5, 220),),
        tasks=tuple(
            TaskScore(
                task=task,
                n=150,
                right=right - (2 if awq else 0),
                score=around((right - (2 if awq else 0)) / 150, 0.04, 150),
                baseline_right=right if awq else None,
                lost=3 if awq else None,
                gained=1 if awq else None,
                p_value=0.625 if awq else None,
                detectable_drop=0.031 if awq else None,
            )
            for task, right in ((texts.task, 143), ("arithmetic", 127))
        ),
        answers=(TaskAnswer(id="j-1", task=texts.task, text=texts.answer, right=not awq),),
        examples=(
            TaskExample(
                task=texts.task,
                id="j-1",
                prompt="Extract the order and its status from the ticket.\nTicket: A-1041 …",
                expected='{"order": "A-1041", "status": "shipped"}',
                baseline='{"order": "A-1041", "status": "shipped"}',
                answer=texts.answer,
            ),
        )
        if awq
        else (),
        verdicts=((0.01, "pass"), (0.02, "pass"), (0.05, "pass")),
        reason=None,
        seconds=88.0,
    )


def comparisons() -> ComparisonSet:
    """Each variant over the baseline, and speculation over its twin."""
    pairs = [(name, "fp16") for name in VARIANTS[1:]]
    pairs += [("awq+spec", "awq"), ("awq+spec+cache", "awq+cache")]
    found = []
    for candidate, reference in pairs:
        for size in BATCH_SIZES:
            if (candidate, size) == FAILED:
                continue
            ratio = speed(candidate, size) / speed(reference, size)
            level = abs(ratio - 1) < 0.04
            verdict = "no difference" if level else "better" if ratio > 1 else "worse"
            found.append(
                Comparison(
                    metric="tps_mean",
                    batch_size=size,
                    reference=reference,
                    candidate=candidate,
                    ratio=around(ratio, 0.035, 3),
                    noise_floor=0.021,
                    verdict=verdict,
                )
            )
    return ComparisonSet(comparisons=tuple(found), noise_floor=0.021)


def decision(texts: Texts) -> Decision:
    """A matrix with a winner, a tie and nothing, as its rows."""
    cost = around(PRICE / 3600 / speed("awq+cache", 8) * 1e6, 0.03, 3)
    base = around(PRICE / 3600 / speed("fp16", 32) * 1e6, 0.03, 3)
    matrix = []
    for target, outcome in ((200.0, "winner"), (500.0, "no significant winner"), (1000.0, "none")):
        for tolerance in (0.01, 0.02, 0.05):
            none = outcome == "none"
            matrix.append(
                MatrixEntry(
                    tier=texts.tier,
                    ttft_target_ms=target,
                    quality_tolerance=tolerance,
                    outcome=outcome,
                    variant=None if none else "awq+cache",
                    batch_size=None if none else 8,
                    cost_per_1m_tokens=None if none else cost,
                    ttft_p95_ms=None if none else around(101.0, 0.1, 192),
                    tps_mean=None if none else around(820.0, 0.03, 3),
                    rivals=("awq+spec+cache",) if outcome.startswith("no ") else (),
                    reason="no cell has its p95 below the target" if none else "cheapest of 14",
                )
            )
    return Decision(
        baseline="fp16",
        matrix=tuple(matrix),
        pareto=(("fp16", 32), ("awq+cache", 32)),
        break_even=(
            BreakEven(
                candidate="awq+spec",
                reference="awq",
                pays_up_to=8,
                stops_at=16,
                sentence="awq+spec beats awq up to batch size 8 and gains nothing from 16 on.",
            ),
            BreakEven(
                candidate="awq+spec+cache",
                reference="awq+cache",
                pays_up_to=8,
                stops_at=16,
                sentence="awq+spec+cache beats awq+cache up to batch size 8.",
            ),
        ),
        excluded=(
            Excluded(variant=FAILED[0], batch_size=FAILED[1], reason=texts.failure),
            Excluded(
                variant=CONTRADICTED[0],
                batch_size=CONTRADICTED[1],
                reason="prefix cache hits: hit rate 31.0 %, 60.0 % expected",
            ),
        ),
        recommendation=Recommendation(
            variant="awq+cache",
            batch_size=8,
            tier=texts.tier,
            ttft_target_ms=500.0,
            quality_tolerance=0.01,
            cost_per_1m_tokens=cost,
            baseline_cost_per_1m_tokens=base,
            saving=Estimate(value=0.362, low=0.331, high=0.39, samples=3),
            reasons=(
                "It is the cheapest of 14 cells that meet TTFT p95 < 500 ms and lose under 1 %.",
                "Its prefix hit rate of 58.2 % was counted by the engine; 60.0 % was built in.",
            ),
            cautions=("awq+spec+cache at batch size 4 is level with it on cost.",),
        ),
    )


def environment(texts: Texts) -> Environment:
    """Provenance."""
    return Environment(
        started_at="2026-11-20T09:30:00+00:00",
        device=Device(
            kind="cuda", name=texts.tier, memory_bytes=85_520_809_984, count=1, driver="575.57"
        ),
        cpu="Xeon Platinum 8481C",
        cpu_count=16,
        ram_bytes=137_438_953_472,
        os="Linux 6.8.0",
        python="3.11.9",
        packages=(("vllm", "0.29.0"), ("torch", "2.13.0"), ("transformers", "5.2.0")),
        git_commit="438c7b7d2f",
    )


def model(texts: Texts, parameters: int, layers: int) -> ModelFacts:
    """A Llama checkpoint."""
    return ModelFacts(
        path=texts.path,
        architecture="LlamaForCausalLM",
        parameters=parameters,
        weight_bytes=parameters * 2,
        hidden_size=4096,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=8192,
        max_position=4096,
        tied_embeddings=False,
        kv_bytes_per_token=131072,
        stored=StoredWeights(
            scheme="16bit",
            dtype="bfloat16",
            group_size=None,
            bits_per_weight=16.0,
            quantized_modules=0,
            unquantized_modules=225,
        ),
        tokenizer=TokenizerIdentity(
            vocab_size=8192,
            sha256="ab" * 32,
            chat_template_sha256=None,
            bos_token_id=1,
            eos_token_ids=(2,),
        ),
        weights_sha256="cd" * 32,
    )


def quantized(texts: Texts) -> QuantizedCheckpoint:
    """An AWQ checkpoint with an error for each unit of 32 layers."""
    units = []
    for layer in range(32):
        for at, kind in enumerate(("qkv", "o", "gate_up", "down")):
            rtn = 0.004 * (1 + at) * (1 + 0.04 * ((layer * 7 + at) % 11))
            units.append(
                UnitError(
                    unit=f"layers.{layer}.{kind}", error=rtn * 0.55, rtn_error=rtn, ratio=0.45
                )
            )
    return QuantizedCheckpoint(
        path=f"{texts.path}-awq",
        method="awq",
        scheme="W4A16",
        group_size=128,
        source_weights_sha256="cd" * 32,
        weights_sha256="ef" * 32,
        weight_bytes=4_130_000_000,
        bits_per_weight=4.16,
        calibration=CalibrationFacts(
            source="built-in", sha256="12" * 32, samples=512, tokens=131072, max_tokens=512, seed=0
        ),
        units=tuple(units),
        seconds=312.0,
        peak_memory_bytes=18_253_611_008,
        device="cuda",
    )


def workload(size: int) -> WorkloadFacts:
    """The traffic at one batch size."""
    return WorkloadFacts(
        sha256=f"{size:02d}" * 32,
        requests=max(64, size * 8),
        shared_prefix_share=0.7,
        long_system_share=0.5,
        shared_prefixes=4,
        input_tokens_mean=512.0,
        output_tokens_mean=128.0,
        input_output_ratio=4.0,
        block_size=16,
        expected_hit_rate=0.6,
        seed=0,
    )


def trial(name: str, size: int, texts: Texts) -> TrialRecord:
    """Three requests; the last one failed."""
    requests = tuple(
        RequestEvent(
            index=at,
            prefix_id="p0",
            scheduled_ns=at * 1000,
            sent_ns=at * 1000 + 10,
            chunk_ns=() if at == 2 else (5_000_000, 9_000_000),
            ended_ns=9_000_000,
            prompt_tokens=512,
            output_tokens=None if at == 2 else 128,
            cached_tokens=None,
            finish_reason=None if at == 2 else "length",
            text=texts.answer,
            error="timeout" if at == 2 else None,
        )
        for at in range(3)
    )
    return TrialRecord(
        variant=name,
        batch_size=size,
        trial=0,
        status="complete",
        workload_sha256=f"{size:02d}" * 32,
        started_at="2026-11-20T09:40:00+00:00",
        window_start_ns=0,
        window_end_ns=9_000_000,
        requests=requests,
        excluded_warmup=20,
        counters_before=Counters(taken_ns=0, values=(("vllm:prompt_tokens_total", 0.0),)),
        counters_after=Counters(taken_ns=9, values=(("vllm:prompt_tokens_total", 1536.0),)),
        memory_bytes=19_400_000_000,
        health=ClientHealth(
            dispatch_delay_p99_ns=80_000,
            loop_lag_p99_ns=120_000,
            cpu_share=0.2,
            valid=True,
            reason=None,
        ),
    )
