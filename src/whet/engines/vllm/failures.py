"""The failures that vLLM's log shows, the most specific first."""

from __future__ import annotations

from typing import Final

from whet.engines.failures import Failures, failure_sign

_SIGNS: Final = (
    failure_sign(
        "kv_too_small",
        r"max seq len\s+\((?P<asked>\d+)\).*?estimated maximum model length is (?P<fits>\d+)",
        "the KV cache has no room for max_model_len {asked}; set engine.args.max_model_len to "
        "{fits} or less, or give the cache more memory",
    ),
    failure_sign(
        "kv_too_small",
        r"max seq len\s+\((?P<asked>\d+)\), \((?P<need>[\d.]+) GiB KV\s+cache is needed[^\n]*?"
        r"memory \((?P<have>[\d.]+) GiB\)",
        "max_model_len {asked} needs {need} GiB of KV cache where {have} GiB are free; lower it "
        "or raise gpu_memory_utilization (on a CPU: VLLM_CPU_KVCACHE_SPACE)",
    ),
    failure_sign(
        "kv_too_small",
        r"No available memory for the cache blocks",
        "no memory is left for the KV cache after the weights; lower max_model_len, raise "
        "gpu_memory_utilization (on a CPU: VLLM_CPU_KVCACHE_SPACE) or use a larger device",
    ),
    failure_sign(
        "model_len",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than[^\n]*?=(?P<fits>\d+)",
        "max_model_len {asked} is more than the model was made for; set it to {fits} or less",
    ),
    failure_sign(
        "busy_memory",
        r"(?P<line>Free memory on device [^\n]*? less than[^\n.]*|Available memory on node "
        r"[^\n]*? less than[^\n.]*|Error in memory profiling[^\n.]*)",
        "{line}; end what else uses the memory, or lower gpu_memory_utilization (on a CPU: "
        "VLLM_CPU_KVCACHE_SPACE)",
    ),
    failure_sign(
        "out_of_memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|DefaultCPUAllocator: can't allocate"
        r"|Cannot allocate memory|\bMemoryError\b",
        "it ran out of memory; lower max_model_len, max_num_seqs or gpu_memory_utilization, or use "
        "a larger device",
    ),
    failure_sign(
        "port",
        r"address already in use",
        "its port was taken by another program; run again (another port is chosen each time)",
    ),
    failure_sign(
        "no_gpu",
        r"No CUDA GPUs are available|Failed to infer device type|Found no NVIDIA driver"
        r"|CUDA driver version is insufficient",
        "it finds no GPU that it can use; check nvidia-smi, or install a CPU build of the engine",
    ),
    failure_sign(
        "architecture",
        r"(?P<line>Model architectures? [^\n]*? (?:not supported|failed to be inspected)[^\n.]*)",
        "{line}; use a newer engine or another model",
    ),
    failure_sign(
        "quantization",
        r"Unknown quantization method: (?P<what>[\w-]+)",
        "it knows no quantization {what}: it may be a plug-in of this version that is not "
        "installed, see whet doctor; or quantize with a recipe",
    ),
    failure_sign(
        "no_kernel",
        r"Failed to find a kernel that can implement the (?P<what>\w+)[^\n]*",
        "this device has no kernel for the {what} weights; choose another quantization scheme",
    ),
    failure_sign(
        "flag",
        r"error: (?P<line>(?:unrecognized arguments|argument --|ambiguous option)[^\n]*)",
        "it does not know a flag ({line}); correct engine.args",
    ),
    failure_sign(
        "compile_cache",
        r"torch_compile_cache[^\n]*(?:No such file|corrupt|Error)|UnpicklingError|InductorError"
        r"|AOTAutogradCache[^\n]*Error|Ran out of input|standalone_compile[^\n]*Error",
        "its compile cache is damaged; remove ~/.cache/vllm/torch_compile_cache",
    ),
    failure_sign(
        "tokenizer",
        r"(?P<line>Target and draft model should have the same vocabulary size[^\n]*)",
        "{line}; use a draft that was made with the target's tokenizer",
    ),
    failure_sign(
        "missing_module",
        r"(?:ModuleNotFoundError|ImportError): (?P<line>[^\n]*)",
        "a Python package of the engine is missing ({line}); install it beside the engine",
    ),
)
FAILURES: Final = Failures(
    signs=_SIGNS,
    lost=(
        "EngineDeadError",
        "EngineCore encountered a fatal error",
        "EngineCore died unexpectedly",
    ),
)
