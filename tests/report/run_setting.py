"""What was measured with what: environment, models, engines, traffic, cells."""

from __future__ import annotations

from tests import records
from tests.report.run_texts import (
    FAILED,
    PRICE,
    Texts,
    around,
    speed,
    ttft,
)
from whet.core.load import Load
from whet.core.provenance import Device, Environment
from whet.core.records.engine import ResolvedEngine, Speculation
from whet.core.records.evidence import EngineFacts
from whet.core.records.load import ClientHealth, Counters, RequestEvent, TrialRecord, WorkloadFacts
from whet.core.records.model import ModelFacts
from whet.core.records.quant import CalibrationFacts, QuantizedCheckpoint, UnitError
from whet.core.records.summary import CellSummary, Estimate


def engine(name: str, texts: Texts) -> ResolvedEngine:
    """A variant as the engine was told of it."""
    awq, spec, cache = name.startswith("awq"), "draft" in name, "cache" in name
    path = f"{texts.path}-awq" if awq else texts.path
    line = f"vllm serve {path} --max-model-len 4096"
    line += "" if cache else " --no-enable-prefix-caching"
    line += " --speculative-config '{\"num_speculative_tokens\": 4}'" if spec else ""
    return ResolvedEngine(
        variant=records.variant(
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
    return records.model(
        path=texts.path,
        parameters=parameters,
        weight_bytes=parameters * 2,
        layers=layers,
        kv_heads=8,
        intermediate_size=14336,
        vocab_size=8192,
        kv_bytes_per_token=131072,
        linear_parameters=None,
        linear_inputs=(),
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
    """The traffic at one concurrency."""
    return records.workload(
        sha256=f"{size:02d}" * 32,
        requests=max(64, size * 8),
        input_tokens_mean=512.0,
        output_tokens_mean=128.0,
        input_output_ratio=4.0,
        block_size=16,
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
        load=Load.at(size),
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


def cell(name: str, size: int, texts: Texts) -> CellSummary:
    """One cell; the failed one holds no figure."""
    samples = max(64, size * 8)
    failed = (name, size) == FAILED
    tps, first = speed(name, size), ttft(name, size)
    cost = PRICE / 3600 / tps * 1e6

    def value(x: float, spread: float = 0.03, *, enough: bool = True) -> Estimate | None:
        return None if failed else around(x, spread, samples, enough=enough)

    return CellSummary(
        variant=name,
        load=Load.at(size),
        status="failed" if failed else "complete",
        trials=0 if failed else 3,
        requests=0 if failed else samples,
        errors=7 if failed else 0,
        memory_kind="device",
        expected_hit_rate=0.6 if "cache" in name else None,
        window_s=None if failed else 61.0,
        warmup_excluded=20,
        failure=texts.failure if failed else None,
        figures={
            "ttft_p50_ms": value(first, 0.04),
            "ttft_p95_ms": value(first * 2.1, 0.11, enough=samples >= 130),
            "tpot_p50_ms": value(1000 * size / tps),
            "tpot_p95_ms": value(1350 * size / tps, 0.06),
            "e2e_p50_ms": value(first + 128_000 * size / tps),
            "e2e_p95_ms": value(2.1 * first + 150_000 * size / tps),
            "itl_p50_ms": value(950 * size / tps),
            "tps_mean": value(tps),
            "rps_mean": value(tps / 128),
            "goodput_rps": value(tps / 131),
            "cost_per_1m_tokens": value(cost),
            "memory_gb": None if failed else (19.4 if name.startswith("awq") else 31.7) + size / 16,
            "acceptance_length": 3.12 - size / 200 if "draft" in name and not failed else None,
            "prefix_hit_rate": 0.582 if "cache" in name and not failed else None,
        },
    )
