"""What a checkpoint says of its quantization, held against its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json_if_any
from whet.core.errors import CheckpointError
from whet.core.records.model import StoredWeights

_MODELOPT: Final = "hf_quant_config.json"
_BITS: Final[Mapping[str, int]] = {
    "W4A16": 4, "W4A8_FP8": 4, "W8A16": 8, "W8A8-INT8": 8, "FP8": 8, "FP8_BLOCK": 8, "NF4": 4,
    **dict.fromkeys(("NVFP4", "NVFP4A16", "MXFP4", "MXFP4-W4A4"), 4),
}  # fmt: skip
_W4A8_GROUP: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationClaim:
    """What ``quantization_config`` states: the method, and every bit width and group size in it.

    ``activation_bits`` are those of the inputs, ``file`` is where it is written.
    """

    method: str
    bits: frozenset[int]
    group_sizes: frozenset[int]
    file: str
    activation_bits: frozenset[int] = frozenset()
    float_activations: bool = False


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
    method = "modelopt" if file == _MODELOPT else str(claim.get("quant_method", "unnamed"))
    return QuantizationClaim(
        method=method,
        bits=_ints(schemes, ("num_bits", "bits", "w_bit")),
        group_sizes=frozenset(
            size for size in _ints(schemes, ("group_size", "q_group_size")) if size > 0
        ),
        file=file,
        activation_bits=_ints(inputs, ("num_bits",)),
        float_activations=any(each.get("type") == "float" for each in inputs),
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


def require_true_claim(path: Path, claim: QuantizationClaim | None, stored: StoredWeights) -> None:
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


def _ints(schemes: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> frozenset[int]:
    values = [scheme.get(key) for scheme in schemes for key in keys]
    return frozenset(value for value in values if isinstance(value, int))
