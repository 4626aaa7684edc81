"""The failures that SGLang's log shows, the most specific first (wording of 0.5.17)."""

from __future__ import annotations

from typing import Final

from whet.engines.failures import Failures, failure_sign

_SIGNS: Final = (
    failure_sign(
        "port",
        r"error while attempting to bind on address|Port is already in use|at \d+ is not available",
        "its port was taken by another program; run again (another port is chosen each time)",
    ),
    failure_sign(
        "no_gpu",
        r"No CUDA GPUs are available|Found no NVIDIA driver|No accelerator .*is available",
        "it finds no NVIDIA GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES",
    ),
    failure_sign(
        "no_memory_left",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "no memory is left for its KV cache; raise mem_fraction_static, free the GPU, or use "
        "weights of fewer bits",
    ),
    failure_sign(
        "graphs",
        r"Capture (?:prefill )?cuda graph failed: (?P<line>[^\n]*)",
        "it cannot capture its CUDA graphs ({line}); lower mem_fraction_static or max_num_seqs",
    ),
    failure_sign(
        "out_of_memory",
        r"OutOfMemoryError|CUDA out of memory",
        "the GPU's memory ran out; lower mem_fraction_static or max_num_seqs, or use weights of "
        "fewer bits",
    ),
    failure_sign(
        "killed",
        r"crashed with exit code -9\b",
        "one of its processes was killed (signal 9), usually because memory ran out; free some, or "
        "lower max_num_seqs",
    ),
    failure_sign(
        "attention",
        r"Can not import FA3 in sgl_kernel",
        "its FlashAttention 3 is missing; install sglang-kernel again (attention_backend: triton "
        "runs without it, slower)",
    ),
    failure_sign(
        "kernels",
        r"Could not load any common_ops library",
        "its kernels do not load; install the sglang-kernel of its own version for this CUDA",
    ),
    failure_sign(
        "compiler",
        r"Could not find (?:nvcc|CUDA)|nvcc: (?:command )?not found|ninja: (?:command )?not found"
        r"|No such file or directory: '[^']*(?:nvcc|ninja)'",
        "it compiles kernels at the start and finds no nvcc or ninja; install both, or set "
        "CUDA_HOME",
    ),
    failure_sign(
        "architecture",
        r"Model architectures \[?'?(?P<what>[^\]']*)'?\]? are not supported for now",
        "this SGLang does not know the architecture {what}; use a newer one or another model",
    ),
    failure_sign(
        "scheme",
        r"(?P<line>No compressed-tensors compatible scheme was found|Other method \([^)]*\) is not "
        r"supported now|Current platform does not support [^\n]*quantization)",
        "it has no kernel for these weights ({line}); choose another quantization scheme",
    ),
    failure_sign(
        "no_checkpoint",
        r"(?P<line>Can't load the configuration of '[^']*'|is not a local folder and is not a "
        r"valid model identifier|Repo id must [^\n]*|Incorrect path_or_model_id: '[^']*')",
        "there is no checkpoint at its path ({line}); correct weights, or delete the recipe's "
        "folder to write it again",
    ),
    failure_sign(
        "flag",
        r"error: (?P<line>(?:unrecognized arguments|argument --|ambiguous option)[^\n]*)",
        "it does not know a flag ({line}); correct args",
    ),
    failure_sign(
        "missing_module",
        r"(?m:^)(?:ModuleNotFoundError|ImportError): (?P<line>[^\n]*)",
        "a Python package of the engine is missing ({line}); install it beside the engine",
    ),
)
FAILURES: Final = Failures(
    signs=_SIGNS,
    ends_itself="Received sigquit from a child process",
)
