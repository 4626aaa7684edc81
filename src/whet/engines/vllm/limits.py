"""What an installed vLLM cannot run, known before it is started.

The compatibility table covers levers by version and machine; here are the rules that depend on the
installed packages and on the spec.
"""

from __future__ import annotations

from typing import Final

from whet.core.flags import plain_args, rust_frontend
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.evidence import EngineFacts
from whet.engines.compatibility import Installed, is_blocked, lookup, version_of
from whet.engines.machine import Machine, find_machine, has_cuda_compiler

OLDEST: Final = (0, 26, 0)
_IGNORED_IN_RUST: Final = frozenset(
    {"disable_access_log_for_endpoints", "enable_flash_late_interaction", "renderer_num_workers"}
    | {"enable_server_load_tracking"}
)


def limitation(
    resolved: ResolvedEngine, installed: Installed, *, gpu: bool, machine: Machine | None = None
) -> str | None:
    """Why this cannot run, with the fix, or None. Default machine: this one."""
    return (
        build_problem(installed, gpu=gpu)
        or _several_servers(resolved.variant, installed)
        or _not_in_rust(resolved.variant)
        or (None if machine else _no_compiler(resolved.variant, installed))
        or _not_available(resolved, installed, machine or find_machine(resolved.device))
    )


def not_installed(python: str) -> str:
    """The sentence for a Python without vLLM."""
    return (
        f"vLLM is not installed for {python}; install it: pip install vllm (without a GPU "
        "a CPU build of it), or set engine.python"
    )


def build_problem(installed: Installed, *, gpu: bool) -> str | None:
    """Why this installation cannot run on this machine, with the fix, or None."""
    if version_of(installed.version) < OLDEST:
        return f"vLLM {installed.version} is older than 0.26; upgrade it: pip install -U vllm"
    if not installed.cpu_build and not gpu:
        return (
            f"vLLM {installed.version} is the CUDA build and this machine shows no NVIDIA GPU; "
            "check nvidia-smi, or install a CPU build of vLLM"
        )
    return None


def api_server_count(variant: Variant) -> int:
    """Number of API server processes that the variant requests."""
    count = str(plain_args(variant).get("api_server_count", 1))
    return int(count) if count.isdecimal() else 1


def _several_servers(variant: Variant, installed: Installed) -> str | None:
    if not installed.cpu_build or api_server_count(variant) == 1:
        return None
    return (
        "a CPU build of vLLM runs one API server process (its `vllm serve`, which starts several, "
        "fails); leave api_server_count out"
    )


def _not_in_rust(variant: Variant) -> str | None:
    """What the Rust front end ignores; what it refuses it says itself."""
    if not rust_frontend(variant.env):
        return None
    if api_server_count(variant) > 1:
        return (
            "vLLM's Rust front end is one process and ignores api_server_count; leave that or "
            "frontend: rust out"
        )
    if flag := ", ".join(sorted(plain_args(variant).keys() & _IGNORED_IN_RUST)):
        return f"vLLM's Rust front end ignores {flag}; leave that or frontend: rust out"
    return None


def _no_compiler(variant: Variant, installed: Installed) -> str | None:
    """Humming compiles its kernels at the start: by NVRTC through cuda-bindings, or by nvcc."""
    library = str(plain_args(variant).get("linear_backend", "")).lower()
    if library != "humming" or has_cuda_compiler(installed.packages):
        return None
    return (
        "kernels: humming compiles at the start, and this machine has no CUDA compiler; install "
        "one beside vLLM: pip install cuda-bindings (or set CUDA_HOME to a toolkit with nvcc)"
    )


def _not_available(resolved: ResolvedEngine, installed: Installed, machine: Machine) -> str | None:
    """The sentence of the first row that stops it.

    The version is the one installed now, not the one that a stored record was resolved for.
    """
    rows = lookup(resolved, machine, version=installed.version)
    row = next((row for row in rows if is_blocked(row, installed)), None)
    if row is None:
        return None
    return f"not available here: {row.sentence}"


_DRAFTS_ON_HOST: Final = frozenset({"ngram", "suffix", "medusa"})
_LATER: Final = "disable_padded_drafter_batch"


def scores_alone(resolved: ResolvedEngine) -> bool:
    """Whether prompts have to be scored one at a time, because several end the engine.

    vLLM 0.32 on a CPU with adapters loaded: ``einsum(): subscript b has size 2 … 62`` where two
    prompts of one step have log-probabilities.
    """
    return resolved.device == "cpu" and bool(resolved.variant.loras)


def scoring_defect(variant: Variant, facts: EngineFacts | None) -> str | None:
    """Why this server may score a prompt wrongly that it would answer rightly, or None.

    vLLM's V1 model runner lets a drafter on the GPU run before it computes the log-probabilities of
    a prompt, and both write into the memory of the CUDA graphs: texts that fit into a graph come
    back as noise or NaN, while generated text is right (vllm-project/vllm#53488, root cause
    in its pull request 53520; read in 0.26's ``gpu_model_runner.py``). The V2 runner is free of it.
    """
    speculation = variant.speculation
    if speculation is None or speculation.method in _DRAFTS_ON_HOST:
        return None
    if facts is None or facts.v2_model_runner or not facts.graphs_captured:
        return None
    if dict(speculation.options).get(_LATER):
        return None
    return (
        "vLLM's V1 model runner is known to overwrite what a prompt's log-probabilities are "
        "computed from, where a drafter runs (vllm-project/vllm#53488), and may answer rightly all "
        f"the same: to see that, set {_LATER}: true in the speculation's options, which switches "
        "asynchronous scheduling off, or serve on the V2 runner"
    )
