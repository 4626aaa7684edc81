"""What a trace sums up to, on one made by hand, and the order of calls to a server."""

import asyncio
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from lab import h100_profile
from lab.h100_profile import Load, kernel_class, profile, read_trace, summarize, table

Span = dict[str, Any]


def _span(cat: str, name: str, ts: float, dur: float, correlation: int = 0) -> Span:
    args = {"correlation": correlation} if correlation else {}
    tid = 7 if cat in ("kernel", "gpu_memcpy") else 1
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


# A decode step from 100 to 300 us, a step with prefill from 300 to 1000, and the one that ends it.
TRACE: list[Span] = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {}},
    _span("user_annotation", "execute_context_0(0)_generation_2(2)", 0, 50),
    _span("user_annotation", "gpu_model_runner: forward", 10, 30),
    _span("cuda_runtime", "cudaGraphLaunch", 20, 10, 1),
    _span("cpu_op", "aten::argmax", 60, 20),
    _span("cpu_op", "aten::empty", 62, 5),
    _span("cuda_runtime", "cudaMemcpyAsync", 70, 5, 2),
    _span("user_annotation", "execute_context_0(0)_generation_0(0)", 85, 5),
    _span("user_annotation", "execute_context_1(64)_generation_2(2)", 100, 60),
    _span("cuda_runtime", "cudaLaunchKernel", 110, 5, 3),
    _span("cuda_driver", "cuLaunchKernelEx", 120, 5, 4),
    _span("user_annotation", "execute_context_0(0)_generation_3(3)", 200, 60),
    _span("cuda_runtime", "cudaGraphLaunch", 210, 10, 5),
    _span("gpu_user_annotation", "execute_context_0(0)_generation_2(2)", 100, 150),
    _span("kernel", "void marlin::Marlin<4>", 100, 50, 1),
    _span("kernel", "flash::FlashAttnFwdSm90", 130, 50, 1),  # another stream: 20 us at once
    _span("gpu_memcpy", "Memcpy DtoH", 182, 18, 2),  # after 2 us
    _span("kernel", "nvjet_tst_128x64", 300, 100, 3),  # after 100 us
    _span("kernel", "triton_red_fused_rms_norm", 400, 20, 4),  # then 580 us until the last step
    _span("kernel", "void marlin::Marlin<4>", 1000, 50, 5),
]  # fmt: skip


def test_the_window_is_whole_steps_and_busy_time_is_a_union() -> None:
    found = summarize(TRACE, skip=0)
    assert (found["window_ms"], found["steps"], found["ms_a_step"]) == (0.9, 2, 0.45)
    assert found["gpu_busy_ms"] == pytest.approx(0.080 + 0.018 + 0.120)
    assert found["gpu_idle_share"] == pytest.approx(1 - 218 / 900, abs=1e-4)
    assert found["kernels"] == 4
    assert found["prefill_step_share"] == 0.5
    assert found["generating_requests_a_step"] == 2


def test_gaps_by_size_add_up_to_the_idle_time() -> None:
    found = summarize(TRACE, skip=0)
    assert found["gaps"] == {
        "<5 us": {"count": 1, "ms": 0.002},
        "5-50 us": {"count": 0, "ms": 0},
        "50-500 us": {"count": 1, "ms": 0.1},
        ">500 us": {"count": 1, "ms": 0.58},
    }
    idle = sum(size["ms"] for size in found["gaps"].values())
    assert idle == pytest.approx(found["window_ms"] - found["gpu_busy_ms"])


def test_kernels_are_summed_by_class_and_by_name() -> None:
    found = summarize(TRACE, skip=0)
    classes = {name: ms for name, ms in found["class_ms_a_step"].items() if ms}
    assert classes == {
        "attention": 0.025,
        "matmul 4-bit": 0.025,
        "fused norm/rope/act": 0.01,
        "matmul 16-bit": 0.05,
        "memcpy": 0.009,
    }
    assert found["top_kernels"][0] == {
        "name": "nvjet_tst_128x64",
        "class": "matmul 16-bit",
        "calls": 1,
        "total_ms": 0.1,
        "mean_us": 100,
    }


def test_launches_tell_a_graph_from_an_eager_step() -> None:
    found = summarize(TRACE, skip=0)
    assert found["by_kind"] == {
        "decode": {"steps": 1, "ms_a_step": 0.2, "graph_launches_a_step": 1,
                   "kernel_launches_a_step": 0},
        "prefill": {"steps": 1, "ms_a_step": 0.7, "graph_launches_a_step": 0,
                    "kernel_launches_a_step": 2},
    }  # fmt: skip
    assert found["api_a_step"]["cudaGraphLaunch"] == {"calls": 0.5, "ms": 0.005}


def test_cpu_ranges_are_named_by_their_nesting_and_leave_a_rest() -> None:
    assert summarize(TRACE, skip=0)["cpu_ms_a_step"] == {
        "execute_model": 0.0575,
        "execute_model > gpu_model_runner: forward": 0.015,
        "torch ops in no range": 0.01,
        "in none of these": 0.0325,
    }


def test_the_first_steps_are_left_out_as_far_as_a_step_remains() -> None:
    found = summarize(TRACE, skip=5)
    assert (found["window_ms"], found["steps"], found["prefill_step_share"]) == (0.7, 1, 1)


def test_a_trace_without_markers_is_one_step_and_one_without_a_gpu_is_refused() -> None:
    found = summarize([span for span in TRACE if span.get("cat") != "user_annotation"])
    assert (found["window_ms"], found["steps"], found["step_markers"]) == (0.95, 1, 0)
    with pytest.raises(ValueError, match="GPU"):
        summarize(TRACE[:5])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "kv-cache write"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<...>>", "attention"),
        ("void cutlass::device_kernel<machete::MacheteKernel<...>>", "matmul 4-bit"),
        ("void vllm::rms_norm_static_fp8_quant_kernel<c10::Float8_e4m3fn>", "fused norm/rope/act"),
        ("cutlass::gemm::kernel::GemmUniversal<cutlass::float_e4m3_t>", "matmul 8-bit"),
        ("nvjet_sm90_qqtst_128x128_128x6", "matmul 8-bit"),
        ("nvjet_sm90_tst_64x8_64x16", "matmul 16-bit"),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel", "sampling"),
        ("void at::native::reduce_kernel<512, 1, ArgMaxOps<float>>", "sampling"),
        ("_compute_slot_mappings_kernel", "other"),
    ],
)
def test_a_kernels_class(name: str, kind: str) -> None:
    assert kernel_class(_span("kernel", name, 0, 1)) == kind


def test_a_server_is_loaded_then_profiled_and_its_workers_trace_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    from aiohttp import web

    monkeypatch.setattr(h100_profile, "STEADY_S", 0.2)
    (tmp_path / "dp0_rank0.1.pt.trace.json").write_text("an older one")
    bodies: list[dict[str, Any]] = []
    calls: list[str] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(bodies[-1]["max_tokens"]):
            await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
            await asyncio.sleep(0.0005)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def control(request: web.Request) -> web.Response:
        calls.append(request.path)
        if request.path == "/stop_profile":
            text = json.dumps({"traceEvents": TRACE}).encode()
            (tmp_path / "host_1.async_llm.2.pt.trace.json.gz").write_bytes(b"")
            (tmp_path / "dp0_rank0.2.pt.trace.json.gz").write_bytes(gzip.compress(text))
        return web.Response()

    async def scene() -> tuple[Path, dict[str, Any]]:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        app.router.add_post("/start_profile", control)
        app.router.add_post("/stop_profile", control)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        load = Load(f"http://{host}:{port}", 4, itertools.cycle([[1, 2], [3]]))
        try:
            return await profile(load, tmp_path)
        finally:
            await runner.cleanup()

    trace, steady = asyncio.run(scene())
    assert calls == ["/start_profile", "/stop_profile"]
    assert trace.name == "dp0_rank0.2.pt.trace.json.gz"
    assert [body["max_tokens"] for body in bodies[:5]] == [32, 64, 96, 128, 128]
    assert bodies[0] | {"prompt": 0, "max_tokens": 0} == {
        "prompt": 0, "max_tokens": 0, "temperature": 0, "ignore_eos": True, "stream": True
    }  # fmt: skip
    assert steady["ms_a_chunk"] > 0
    assert "client" in steady["cpu_cores"]
    found = summarize(read_trace(trace), skip=0) | {"steady": steady}
    assert "| 4 | " in table({4: found})
