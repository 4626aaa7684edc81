"""What whet does not start on SGLang, known before it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.core.flags import plain_args, rust_frontend
from whet.core.outside import read_json
from whet.core.records.engine import Speculation, Variant
from whet.engines.compatibility import Installed, version_of
from whet.engines.sglang.flags import ALGORITHMS

OLDEST: Final = (0, 5, 17)
_SIZES: Final = ("tensor_parallel_size", "tp_size", "pp_size", "dp_size", "nnodes")


def limitation(variant: Variant, installed: Installed, *, gpu: bool) -> str | None:
    """Why this cannot run, with the fix, or None."""
    return (
        build_problem(installed, gpu=gpu)
        or _not_set_up(variant)
        or (None if variant.speculation is None else _no_speculation(variant.speculation))
    )


def not_installed(python: str) -> str:
    """The sentence for a Python without SGLang."""
    return (
        f"SGLang is not installed for {python}; install it in an environment of its own (pip "
        "install sglang) and set python of this engine to that environment's"
    )


def build_problem(installed: Installed, *, gpu: bool) -> str | None:
    if version_of(installed.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return (
            f"SGLang {installed.version} is older than {oldest}; upgrade it: pip install -U sglang"
        )
    if not gpu:
        return (
            "SGLang needs an NVIDIA GPU and this machine shows none; check nvidia-smi, or serve "
            "this variant on another engine"
        )
    return None


def _not_set_up(variant: Variant) -> str | None:
    if variant.loras:
        return "whet serves adapters on vLLM only; leave loras out, or the engine"
    if variant.layout is not None:
        return "whet puts a router before servers of vLLM only; leave layout out, or the engine"
    if rust_frontend(variant.env) is not None:
        return "frontend is a choice of vLLM; leave it out, or the engine"
    args = plain_args(variant)
    several = [name for name in _SIZES if str(args.get(name, 1)) != "1"]
    if several:
        return f"whet starts SGLang on one GPU; leave {', '.join(several)} out"
    return None


def _no_speculation(speculation: Speculation) -> str | None:
    method = speculation.method
    if method not in ALGORITHMS:
        return f"whet sets up {', '.join(ALGORITHMS)} on SGLang; {method} needs vLLM"
    if speculation.options:
        names = ", ".join(name for name, _ in speculation.options)
        return f"whet sets no speculation option on SGLang ({names}); leave it out"
    if method == "eagle3" and _norms_first(speculation.draft_path):
        return (
            "SGLang ignores norm_before_residual, with which this head was made, and its drafts "
            "would be wrong; use a head without it, or vLLM"
        )
    return None


def _norms_first(folder: str | None) -> bool:
    """Whether a head's stream begins as the normed hidden state."""
    try:
        config = read_json(Path(folder or "") / "config.json", infinite=True)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("norm_before_residual") is True
