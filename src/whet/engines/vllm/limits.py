"""What an installed vLLM cannot run, known before it is started.

The compatibility table covers levers by version and machine; here are the rules that depend on the
installed packages and on the spec.
"""

from __future__ import annotations

from typing import Final

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine, Variant
from whet.engines.compatibility import lookup, version_of
from whet.engines.installed import Installed, is_blocked
from whet.engines.machine import Machine, find_machine

OLDEST: Final = (0, 26, 0)


def limitation(
    resolved: ResolvedEngine, installed: Installed, *, gpu: bool, machine: Machine | None = None
) -> str | None:
    """Why this cannot run, with the fix, or None. Default machine: this one."""
    return (
        build_problem(installed, gpu=gpu)
        or _several_servers(resolved.variant, installed)
        or _not_available(resolved, installed, machine or find_machine(resolved.device))
    )


def installation_problem(python: str, installed: Installed | None, *, gpu: bool) -> str | None:
    """Why what ``python`` has installed cannot run on this machine, with the fix, or None."""
    return not_installed(python) if installed is None else build_problem(installed, gpu=gpu)


def not_installed(python: str) -> str:
    """The sentence for a Python without vLLM."""
    return (
        f"vLLM is not installed for {python}; install it: pip install 'whet[gpu]' (a CPU build "
        "of vLLM on a machine without a GPU), or set engine.python"
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


def _not_available(resolved: ResolvedEngine, installed: Installed, machine: Machine) -> str | None:
    """The sentence of the first row that stops it.

    The version is the one installed now, not the one that a stored record was resolved for.
    """
    rows = lookup(resolved, machine, version=installed.version)
    row = next((row for row in rows if is_blocked(row, installed)), None)
    if row is None:
        return None
    return f"not available here: {row.sentence}"
