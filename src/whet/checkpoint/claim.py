"""What a checkpoint says of its quantization, held against its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.formats import Linear
from whet.core.errors import CheckpointError
from whet.core.records.model import StoredWeights

_MODELOPT: Final = "hf_quant_config.json"
_BITS: Final[Mapping[str, int]] = {
    "W4A16": 4, "W4A8_FP8": 4, "W8A16": 8, "W8A8-INT8": 8, "FP8": 8, "FP8_BLOCK": 8, "NF4": 4,
    **dict.fromkeys(("NVFP4", "NVFP4A16", "MXFP4", "MXFP4-W4A4"), 4),
}  # fmt: skip
_IN_BLOCKS: Final[Mapping[str, bool]] = {"FP8": False, "FP8_BLOCK": True}
_W4A8_GROUP: Final = 128
_ROUTER: Final = re.compile(r"(?:^|\.)(?:router|gate|shared_expert_gate)(?:\.|$)")
"""Engines keep routers in 16 bits whether they are named or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationClaim:
    """What ``quantization_config`` states: the method, and every bit width and group size in it.

    ``ignore`` are the modules that it leaves in 16 bits, ``re:`` before a pattern; ``all_linears``
    whether it quantizes every other linear layer. ``activation_bits`` are those of the inputs.
    ``blocks``: whether blocks of weights share a scale, None if it does not say. ``file`` is where
    it is written.
    """

    method: str
    bits: frozenset[int]
    group_sizes: frozenset[int]
    file: str
    ignore: tuple[str, ...] = ()
    all_linears: bool = False
    activation_bits: frozenset[int] = frozenset()
    float_activations: bool = False
    blocks: bool | None = None


def read_claim(path: Path, config: Mapping[str, Any]) -> QuantizationClaim | None:
    """The claim in config.json, else in the file that NVIDIA's ModelOpt writes beside it."""
    claim, file = config.get("quantization_config"), "config.json"
    if not isinstance(claim, dict):
        claim, file = read_json_if_any(path / _MODELOPT).get("quantization"), _MODELOPT
    if not isinstance(claim, dict):
        return None
    groups = claim.get("config_groups")
    parts = [each for each in groups.values() if isinstance(each, dict)] if groups else []
    weights = [part.get("weights") for part in parts]
    schemes = [claim, *(each for each in weights if isinstance(each, dict))]
    inputs = [each for part in parts if isinstance(each := part.get("input_activations"), dict)]
    ignore = claim.get("ignore")
    method = "modelopt" if file == _MODELOPT else str(claim.get("quant_method", "unnamed"))
    return QuantizationClaim(
        method=method,
        bits=_ints(schemes, ("num_bits", "bits", "w_bit")),
        group_sizes=frozenset(
            size for size in _ints(schemes, ("group_size", "q_group_size")) if size > 0
        ),
        file=file,
        ignore=tuple(map(str, ignore)) if isinstance(ignore, list) else (),
        all_linears=method == "compressed-tensors"
        and any(part.get("targets") == ["Linear"] for part in parts),
        activation_bits=_ints(inputs, ("num_bits",)),
        float_activations=any(each.get("type") == "float" for each in inputs),
        blocks=_blocks(schemes),
    )


def with_activations(claim: QuantizationClaim | None, stored: StoredWeights) -> StoredWeights:
    """The scheme of activations that are rounded at run time and have no tensors.

    MXFP4 with 4 bits, or 4-bit integers with FP8, whose other group sizes than 128 are named.
    """
    bits = frozenset[int]() if claim is None else claim.activation_bits
    if stored.scheme == "MXFP4" and 4 in bits:
        return replace(stored, scheme="MXFP4-W4A4")
    if stored.scheme == "W4A16" and claim is not None and 8 in bits and claim.float_activations:
        group = "" if stored.group_size == _W4A8_GROUP else f"-G{stored.group_size}"
        return replace(stored, scheme=f"W4A8_FP8{group}")
    return stored


def require_true_claim(
    path: Path,
    claim: QuantizationClaim | None,
    stored: StoredWeights,
    linears: Sequence[Linear] = (),
) -> None:
    """Refuse a folder whose ``quantization_config`` contradicts its tensors."""
    config = path / ("config.json" if claim is None else claim.file)
    if claim is None:
        if stored.quantized_modules > 0:
            raise CheckpointError(
                f"{stored.quantized_modules} linear layers of {path} are stored as "
                f"{stored.scheme}, but {config} has no quantization_config, so an engine would "
                "misread them",
                fix="download the checkpoint again",
            )
        return
    if stored.quantized_modules == 0:
        raise CheckpointError(
            f"{config} says that the weights are quantized ({claim.method}), but every linear "
            f"layer is stored as {stored.dtype}: the folder was saved without being quantized",
            fix="quantize it again, or remove quantization_config to serve it as it is",
        )
    for what, claimed, actual in (
        ("bits", claim.bits, _BITS.get(stored.scheme)),
        ("group size", claim.group_sizes, stored.group_size),
    ):
        if actual is not None and claimed and actual not in claimed:
            raise CheckpointError(
                f"{config} claims {what} {' and '.join(map(str, sorted(claimed)))}, but the "
                f"tensors are stored with {actual}",
                fix="restore the config.json that was written with these weights",
            )
    if claim.blocks is not None and claim.blocks != _IN_BLOCKS.get(stored.scheme, claim.blocks):
        words = ("blocks", "rows") if claim.blocks else ("rows", "blocks")
        raise CheckpointError(
            f"{config} claims FP8 scales of {words[0]}, but the tensors have those of {words[1]}",
            fix="restore the config.json that was written with these weights",
        )
    for sentence in _contradictions(claim, linears):
        raise CheckpointError(f"{config}: {sentence}", fix="quantize the checkpoint again")


def _contradictions(claim: QuantizationClaim, linears: Sequence[Linear]) -> Iterator[str]:
    """Layers that ``ignore`` names and that are quantized, or the other way round.

    Patterns may match anywhere, and a name may lack the first parts of the tensor's: libraries
    rename the outer modules.
    """
    if claim.method != "compressed-tensors":
        return
    names = {each for each in claim.ignore if not each.startswith("re:")}
    both = next((each.name for each in linears if each.quantized and each.name in names), None)
    if both is not None:
        yield f"quantization_config.ignore names {both}, but its weights are quantized"
    if not claim.all_linears:
        return
    patterns = [_pattern(each) for each in claim.ignore]
    for linear in linears:
        if linear.quantized or _ROUTER.search(linear.name):
            continue
        if not any(pattern.search(linear.name) for pattern in patterns):
            yield (
                f"every linear layer is said to be quantized, but {linear.name} is stored in 16 "
                "bits and quantization_config.ignore does not name it, so an engine would misread "
                "it"
            )
            return


def _pattern(ignored: str) -> re.Pattern[str]:
    """One entry of ``ignore``; a plain name is compared from its layer on."""
    if not ignored.startswith("re:"):
        at = ignored.find("layers.")
        return re.compile(f"(?:^|\\.){re.escape(ignored[max(at, 0) :])}(?:\\.|$)")
    try:
        return re.compile(ignored.removeprefix("re:"))
    except re.error:
        return re.compile("")


def _blocks(schemes: Sequence[Mapping[str, Any]]) -> bool | None:
    if any(each.get("strategy") == "block" or each.get("weight_block_size") for each in schemes):
        return True
    return False if any("strategy" in each for each in schemes) else None


def _ints(schemes: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> frozenset[int]:
    values = [scheme.get(key) for scheme in schemes for key in keys]
    return frozenset(value for value in values if isinstance(value, int))
