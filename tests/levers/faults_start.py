"""Faults that a start shows, planted in recorded logs and pages; and healthy starts."""

from __future__ import annotations

from tests.levers.builders import DRAFT
from tests.levers.planted import Judge, contradicted, start, unproved
from tests.levers.recorded import log, pages
from whet.core.records.engine import Speculation

LORA_LOG = (
    "(APIServer pid=1) INFO 11-21 15:06:41 [serving_models.py:231] Loaded new LoRA adapter: name "
    "'billing', path '/model'\n"
)
NO_FP8 = (
    "(EngineCore pid=2986) WARNING 11-21 15:01:34 [marlin_utils_fp8.py:109] Your GPU does not have "
    "native support for FP8 computation but FP8 quantization is being used.\n"
)
TO_NONE = (
    "(APIServer pid=1) INFO 11-21 15:06:41 [vllm.py:3179] CUDA graphs are not supported with stock "
    "torch.compile in Model Runner V2. Overriding cudagraph_mode FULL to NONE.\n"
)
UNABLE = (
    "(EngineCore pid=2104) WARNING 11-21 15:06:41 [compilation.py:1439] CUDAGraphMode.FULL is not "
    "supported with FlexAttentionBackend backend (support: 0); setting cudagraph_mode=NONE because "
    "attention is not compiled piecewise\n"
)
INT8 = {"quantization": "int8_per_channel_weight_only"}
FP8_LABEL = ('cache_dtype="auto"', 'cache_dtype="fp8"')
UNIT_SCALES = (
    "(EngineCore pid=3281) WARNING 11-21 15:02:35 [kv_cache.py:188] Using KV cache scaling factor "
    "1.0 for fp8_e4m3. If this is unintended, verify that k/v_scale scaling factors are properly "
    "set in the checkpoint.\n"
)
OWN_POOL = ('kv_cache_memory_bytes="1073741824"', 'kv_cache_memory_bytes="None"')
FP8_DECIDED = "Using fp8 data type to store kv cache.\nAvailable KV cache memory: 72.54 GiB\n"
RANKED = (
    "(Worker pid=20080) INFO 11-27 00:48:25 [parallel_state.py:2385] rank 0 in world size 4 is "
    "assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, ETP rank 0, EP rank 0, EPLB rank "
    "N/A\n"
)  # of a mixture of experts whose experts are not divided
DIVIDED = (
    "(Worker_TP0_EP0 pid=19591) INFO 11-27 00:48:25 [expert_map_manager.py:250] [EP Rank 0/4] "
    "Expert parallelism is enabled. Expert placement strategy: linear. Local/global number of "
    "experts: 32/128. Experts local to global index map: 0->0, 1->1.\n"
)
EXPERTS = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
BILLING = (("billing", "/model"),)
W4A16 = {"weights": "awq", "scheme": "W4A16"}
LISTED = ('"id": "target"', '"id": "billing"')


HEAD_BY_LOAD = Speculation(
    method="eagle3",
    num_tokens=6,
    draft_path="/head",
    options=(("num_speculative_tokens_per_batch_size", "[[1,16,6],[17,256,2]]"),),
)
BY_LOAD = (
    '"speculative_config": {"method": "eagle3", "num_speculative_tokens": 6, '
    '"num_speculative_tokens_per_batch_size": [[1, 16, 6], [17, 256, 2]]}'
)
NOT_FULL = (
    "(EngineCore pid=7) WARNING 11-22 06:11:20 [compilation.py:1500] CUDAGraphMode.FULL is not "
    "supported with FlashInferBackend backend (support: AttentionCGSupport.UNIFORM_BATCH); "
    "setting cudagraph_mode=FULL_AND_PIECEWISE\n"
)
WEIGHTS = [
    contradicted(
        "said AWQ, served in 16 bit",
        "no layer is quantized",
        lambda: start("weights", log("h100_16bit_graphs"), **W4A16),
    ),
    contradicted(
        "a --quantization that does nothing",
        "0 layers with quant=",
        lambda: start(
            "weights",
            log("cpu_flash_refused"),
            pages(('"quantization": null', '"quantization": "int8_per_channel_weight_only"')),
            args=INT8,
        ),
    ),
    contradicted(
        "four bits on a fallback kernel",
        "ConchLinearKernel",
        lambda: start("weights", log("h100_w4a16", ("Machete", "Conch")), **W4A16),
    ),
    contradicted(
        "FP8 without the hardware",
        "does not have native support",
        lambda: start("weights", log("h100_fp8", more=NO_FP8), scheme="FP8"),
    ),
    contradicted(
        "FP8 through Marlin, weight only",
        "MarlinFP8ScaledMMLinearKernel",
        lambda: start("weights", log("h100_fp8", ("CutlassFP8", "MarlinFP8")), scheme="FP8"),
    ),
    unproved(
        "said AWQ, stored as INT8",
        "no kernel known for W4A16",
        lambda: start("weights", log("h100_w8a8"), **W4A16),
    ),
    contradicted(
        "said 16 bit, quantized",
        "a kernel for quantized weights",
        lambda: start("weights", log("h100_w4a16")),
    ),
    unproved(
        "one layer in four quantized",
        "most of the model is not quantized",
        lambda: start(
            "weights",
            log(
                "h100_w4a16",
                ("MergedColumnParallelLinear(quant=CompressedTensorsWNA16, ", "ColumnLinear("),
                ("RowParallelLinear(quant=CompressedTensorsWNA16, ", "RowParallelLinear("),
            ),
            **W4A16,
        ),
    ),
    unproved(
        "the log shows no layers",
        "does not show",
        lambda: start("weights", log("h100_w4a16", ("vLLM model structure:", "")), **W4A16),
    ),
]
LEVERS = [
    contradicted(
        "max_num_seqs resolved lower",
        "max_num_seqs=64",
        lambda: start("settings", log("cpu_flash_refused"), pages(), args={"max_num_seqs": 64}),
    ),
    contradicted(
        "another draft length",
        "num_speculative_tokens=4",
        lambda: start(
            "settings",
            log("cpu_flash_refused"),
            pages(
                (
                    '"speculative_config": null',
                    '"speculative_config": {"method": "draft_model", "num_speculative_tokens": 2}',
                )
            ),
            speculation=DRAFT,
        ),
    ),
    contradicted(
        "proposals by load resolved otherwise",
        "[[1, 16, 6], [17, 256, 2]], and /server_info says",
        lambda: start(
            "settings",
            log("cpu_flash_refused"),
            pages(('"speculative_config": null', BY_LOAD.replace("17, 256, 2", "17, 256, 6"))),
            speculation=HEAD_BY_LOAD,
        ),
    ),
    unproved(
        "an own flag that no source tells",
        "stream_interval",
        lambda: start(
            "settings",
            log("cpu_flash_refused"),
            pages(),
            args={"max_num_seqs": 32, "stream_interval": 4},
        ),
    ),
    contradicted(
        "one API server of four asked for",
        "api_server_count=4, and the log says api_server_count 1",
        lambda: start(
            "settings",
            log("h100_front_ends", *((f"ApiServer_{n} ", "ApiServer_0 ") for n in (1, 2, 3))),
            args={"api_server_count": 4},
        ),
    ),
    unproved(
        "four API servers asked of a module that starts one",
        "no source reports api_server_count",
        lambda: start("settings", log("h100_w4a16"), args={"api_server_count": 4}),
    ),
    contradicted(
        "graphs for decoding alone",
        "cudagraph_mode=FULL, and /server_info says compilation_config.cudagraph_mode: [2, 1]",
        lambda: start(
            "settings",
            log("h100_front_ends"),
            pages(('"cudagraph_mode": 0', '"cudagraph_mode": [2, 1]')),
            args={"compilation_config": '{"cudagraph_mode":"FULL"}'},
        ),
    ),
    contradicted(
        "graphs that a worker took back",
        "cudagraph_mode=FULL, and the log: CUDAGraphMode.FULL is not supported",
        lambda: start(
            "settings",
            log("h100_front_ends", more=NOT_FULL),
            pages(('"cudagraph_mode": 0', '"cudagraph_mode": 2')),
            args={"compilation_config": '{"cudagraph_mode":"FULL"}'},
        ),
    ),
    contradicted(
        "fp8 KV cache, the label says auto",
        "stored in auto",
        lambda: start("kv_cache", log("h100_w8a8"), pages(), args={"kv_cache_dtype": "fp8"}),
    ),
    unproved(
        "fp8 KV cache, the label is missing",
        "does not report",
        lambda: start(
            "kv_cache",
            log("h100_fp8_kv8"),
            pages(without=("/metrics",)),
            args={"kv_cache_dtype": "fp8"},
        ),
    ),
    unproved(
        "fp8 KV cache, only the wish repeated",
        "the log reports no quantized cache",
        lambda: start(
            "kv_cache",
            log("h100_w4a16"),
            pages(FP8_LABEL, OWN_POOL),
            args={"kv_cache_dtype": "fp8"},
        ),
    ),
    contradicted(
        "fp8 KV cache, and the pool has room for 16 bits",
        "2.00 bytes",
        lambda: start(
            "kv_cache",
            log("h100_w4a16", more=FP8_DECIDED),
            pages(FP8_LABEL, OWN_POOL),
            args={"kv_cache_dtype": "fp8"},
        ),
    ),
    contradicted(
        "fp8 KV cache, the checkpoint's scales are 1.0",
        "scales are not in use",
        lambda: start(
            "kv_cache",
            log("h100_fp8_kv8", more=UNIT_SCALES),
            pages(FP8_LABEL, OWN_POOL),
            args={"kv_cache_dtype": "fp8"},
            kv_scales=True,
        ),
    ),
    contradicted(
        "an attention backend that was refused",
        "Cannot use",
        lambda: start(
            "attention",
            log("cpu_flash_refused"),
            pages(),
            args={"attention_backend": "FLASH_ATTN"},
            device="cpu",
        ),
    ),
    contradicted(
        "attention runs on another backend",
        "FLASH_ATTN",
        lambda: start("attention", log("h100_w8a8"), args={"attention_backend": "FLASHINFER"}),
    ),
    contradicted(
        "the layers have another attention class than was selected",
        "TRITON_ATTN",
        lambda: start(
            "attention",
            log("h100_w8a8", ("backend=FlashAttentionImpl", "backend=TritonAttentionImpl")),
            args={"attention_backend": "FLASH_ATTN"},
        ),
    ),
    contradicted(
        "eager although graphs were asked for",
        "eagerly",
        lambda: start("execution", log("h100_w8a8"), args={"enforce_eager": False}),
    ),
    contradicted(
        "CUDA graphs overridden",
        "to NONE",
        lambda: start(
            "execution", log("h100_16bit_graphs", more=TO_NONE), args={"enforce_eager": False}
        ),
    ),
    contradicted(
        "CUDA graphs that the attention backend cannot have",
        "cudagraph_mode=NONE",
        lambda: start(
            "execution", log("h100_16bit_graphs", more=UNABLE), args={"enforce_eager": False}
        ),
    ),
    unproved(
        "no report of captured graphs",
        "no captured graphs",
        lambda: start(
            "execution",
            log("h100_16bit_graphs", ("Graph capturing finished", "")),
            args={"enforce_eager": False},
        ),
    ),
    contradicted(
        "asynchronous scheduling switched off by speculation",
        "not supported with draft_model",
        lambda: start(
            "async_scheduling", log("h100_awq_draft_model"), args={"async_scheduling": True}
        ),
    ),
    contradicted(
        "two ranks asked for, one in the layers",
        "tensor_parallel_size is 1",
        lambda: start(
            "parallelism",
            log("h100_w8a8"),
            pages(('"tensor_parallel_size": 1', '"tensor_parallel_size": 2')),
            args={"tensor_parallel_size": 2},
        ),
    ),
    unproved(
        "experts that have a rank and are not divided",
        "no source reports enable_expert_parallel",
        lambda: start(
            "parallelism",
            log("h100_w8a8", ("tp_size=1", "tp_size=2"), more=RANKED),
            args=EXPERTS,
        ),
    ),
    contradicted(
        "two engines asked for, one in the metrics",
        "data_parallel_size is 1",
        lambda: start("parallelism", log("h100_w8a8"), pages(), args={"data_parallel_size": 2}),
    ),
    contradicted(
        "an adapter that is not in /v1/models",
        "not listed: billing",
        lambda: start("lora", log("cpu_flash_refused", more=LORA_LOG), pages(), loras=BILLING),
    ),
    unproved(
        "an adapter that only a name stands for",
        "nothing shows",
        lambda: start("lora", log("cpu_flash_refused"), pages(LISTED), loras=BILLING),
    ),
    unproved(
        "a gateway that answers with a page for people",
        "nothing shows",
        lambda: start(
            "lora",
            log("cpu_flash_refused", more=LORA_LOG),
            pages(('{"object": "list"', '<html>{"object": "list"')),
            loras=BILLING,
        ),
    ),
    unproved(
        "a gateway without /server_info",
        "no source reports max_num_seqs",
        lambda: start(
            "settings",
            log("cpu_flash_refused"),
            pages(without=("/server_info",)),
            args={"max_num_seqs": 32, "max_model_len": 1024},
        ),
    ),
    contradicted(
        "prefix caching off, and only /server_info is left to say so",
        "/server_info cache_config.enable_prefix_caching",
        lambda: start(
            "prefix_cache",
            log("h100_w8a8", ("enable_prefix_caching", "…")),
            pages(
                ('"enable_prefix_caching": true', '"enable_prefix_caching": false'),
                without=("/metrics",),
            ),
            prefix_cache=True,
        ),
    ),
    contradicted(
        "prefix caching off behind a proxy",
        'enable_prefix_caching="False"',
        lambda: start(
            "prefix_cache",
            log("cpu_flash_refused"),
            pages(('enable_prefix_caching="True"', 'enable_prefix_caching="False"')),
            prefix_cache=True,
        ),
    ),
]

TWINS: dict[str, Judge] = {
    "weights W4A16": lambda: start("weights", log("h100_w4a16"), **W4A16),
    "weights W8A8": lambda: start("weights", log("h100_w8a8"), scheme="W8A8-INT8"),
    "weights FP8": lambda: start("weights", log("h100_fp8"), scheme="FP8"),
    "weights of a target whose draft is in 16 bit": lambda: start(
        "weights", log("h100_awq_draft_model"), **W4A16
    ),
    "weights 16bit": lambda: start("weights", log("h100_16bit_graphs")),
    "settings": lambda: start(
        "settings",
        log("cpu_flash_refused"),
        pages(),
        args={"max_num_seqs": 32, "dtype": "float32", "max_model_len": 1024, "block_size": 128},
    ),
    "proposals by load": lambda: start(
        "settings",
        log("cpu_flash_refused"),
        pages(('"speculative_config": null', BY_LOAD)),
        speculation=HEAD_BY_LOAD,
    ),
    "settings in objects": lambda: start(
        "settings",
        log("h100_front_ends"),
        pages(('"cudagraph_mode": 0', '"cudagraph_mode": 2, "cudagraph_capture_sizes": [1, 2, 4]')),
        args={
            "api_server_count": 4,
            "compilation_config": '{"cudagraph_mode":"FULL","cudagraph_capture_sizes":[1,2,4]}',
        },
    ),
    "kv_cache": lambda: start(
        "kv_cache", log("h100_fp8_kv8"), pages(FP8_LABEL, OWN_POOL), args={"kv_cache_dtype": "fp8"}
    ),
    "kv_cache with the checkpoint's scales": lambda: start(
        "kv_cache",
        log("h100_fp8_kv8"),
        pages(FP8_LABEL, OWN_POOL),
        args={"kv_cache_dtype": "fp8"},
        kv_scales=True,
    ),
    "kv_cache of a checkpoint that has no scales": lambda: start(
        "kv_cache",
        log("h100_fp8_kv8", more=UNIT_SCALES),
        pages(FP8_LABEL, OWN_POOL),
        args={"kv_cache_dtype": "fp8"},
    ),
    "attention": lambda: start(
        "attention", log("h100_w8a8"), args={"attention_backend": "FLASH_ATTN"}
    ),
    "attention on a CPU": lambda: start(
        "attention",
        log("cpu_flash_refused", ("Cannot use AttentionBackendEnum.FLASH_ATTN backend", "")),
        args={"attention_backend": "CPU_ATTN"},
    ),
    "execution in graphs": lambda: start(
        "execution", log("h100_16bit_graphs"), args={"enforce_eager": False}
    ),
    "execution eagerly": lambda: start("execution", log("h100_w8a8"), args={"enforce_eager": True}),
    "asynchronous scheduling": lambda: start(
        "async_scheduling", log("h100_w8a8"), args={"async_scheduling": True}
    ),
    "tensor parallelism": lambda: start(
        "parallelism",
        log("h100_w8a8", ("tp_size=1", "tp_size=2")),
        args={"tensor_parallel_size": 2},
    ),
    "expert parallelism": lambda: start(
        "parallelism",
        log("h100_w8a8", ("tp_size=1", "tp_size=2"), more=RANKED + DIVIDED),
        args=EXPERTS,
    ),
    "data parallelism": lambda: start(
        "parallelism",
        log("h100_w8a8"),
        pages(
            (
                'vllm:num_requests_running{engine="0",model_name="/model"} 0.0',
                'vllm:num_requests_running{engine="0",model_name="/model"} 0.0\n'
                'vllm:num_requests_running{engine="1",model_name="/model"} 0.0',
            )
        ),
        args={"data_parallel_size": 2},
    ),
    "adapters": lambda: start(
        "lora", log("cpu_flash_refused", more=LORA_LOG), pages(LISTED), loras=BILLING
    ),
}
