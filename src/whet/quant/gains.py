"""Whether a stored checkpoint's weights are as large as its source's.

Rounding moves each weight a little and keeps the matrix: its projection on the source's,
⟨W′, W⟩ ÷ ⟨W, W⟩, is its *gain*, near 1. A scale that was stored, packed or loaded wrongly moves it,
and no comparison of answers need show that where 4 bits alone lose more. AWQ and SmoothQuant move
column scales into what stands before, so columns are compared as the layer uses them: times the
norm's weight, or times the length of the row that produces them. A linear whose rows took such
scales has no gain of its own: what it and the next one make together is compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from torch import Tensor

from whet.core.errors import CheckpointError
from whet.quant.architecture import UnitMap, read_architecture
from whet.quant.source import Source

BOUND: Final = 0.025
"""Share by which a gain may differ from the same linear's in other layers."""
_ANOTHER: Final = 0.2
_METHOD: Final = "compressed-tensors"
_NOT_WEIGHTS: Final = frozenset({"input_scale", "k_scale", "v_scale", "bias"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The gain of one ``linear`` (its full name); ``kind`` is its name within the layer."""

    linear: str
    kind: str
    value: float


def gain_problem(folder: Path, source: Path) -> str | None:
    """What is off in the weights of ``folder``, made of ``source``, in a sentence, or None.

    A linear is off where its gain differs by more than ``BOUND`` from the median of its kind over
    the layers. Only compressed-tensors and 16-bit folders are looked at, and none whose gains are
    far from 1 throughout: they are of another model. Raises ``CheckpointError``
    where a tensor cannot be read and ``QuantizationError`` for layers that have no map.
    """
    found = list(find_gains(folder, source))
    usual = {
        kind: median(gain.value for gain in found if gain.kind == kind)
        for kind in {gain.kind for gain in found}
    }
    if any(abs(value - 1) > _ANOTHER for value in usual.values()):
        return None
    off = [gain for gain in found if abs(gain.value / usual[gain.kind] - 1) > BOUND]
    if not off:
        return None
    worst = max(off, key=lambda gain: abs(gain.value / usual[gain.kind] - 1))
    change = 100 * (worst.value / usual[worst.kind] - 1)
    others = f" (and {len(off) - 1} more)" if len(off) > 1 else ""
    return (
        f"the weights of {worst.linear}{others} are {change:+.1f}% of what they are in the "
        "source, against the other layers: a scale is wrong; quantize again, or download it again"
    )


@torch.no_grad()
def find_gains(folder: Path, source: Path) -> Iterator[Gain]:
    """The gain of every linear of the decoder, layer by layer; none for other storage methods."""
    config = _config(folder)
    stored = config.get("quantization_config")
    if stored is not None and stored.get("quant_method") != _METHOD:
        return
    here = _Weights(Source(folder), None if stored is None else QuantizationConfig(**stored))
    there = _Weights(Source(source), None)
    shapes = {name: header.shape for name, header in there.source.headers.items()}
    architecture = read_architecture(_config(source), shapes)
    for prefix, units in zip(architecture.prefixes, architecture.units, strict=True):
        rescaled = {unit.fold for unit in units if unit.fold_is_linear}
        layers = [_Layer(side, prefix, units, architecture.norm_offset) for side in (here, there)]
        for name in (name for unit in units for name in unit.linears if name not in rescaled):
            one, two = (layer.used(name) for layer in layers)
            value = float((one * two).sum() / two.square().sum())
            yield Gain(linear=prefix + name, kind=name, value=value)


@dataclass(frozen=True, slots=True)
class _Weights:
    """A folder's weights as numbers."""

    source: Source
    config: QuantizationConfig | None

    def read(self, linear: str) -> Tensor:
        """Float32 [O, K], dequantized where it is stored so."""
        names = {
            part: name
            for name in self.source.headers
            if name.rpartition(".")[0] == linear
            and (part := name.rpartition(".")[2]) not in _NOT_WEIGHTS
        }
        state = {part: self.source.read(name) for part, name in names.items()}
        if not state:
            raise CheckpointError(f"{self.source.folder} lacks {linear}.weight; download it again")
        if set(state) == {"weight"}:
            return state["weight"].float()
        scheme, form = self._scheme(linear)
        compressor: Any = BaseCompressor.get_value_from_registry(form)
        weight: Tensor = compressor.decompress(state, scheme)["weight"]
        return weight.float()

    def _scheme(self, linear: str) -> tuple[QuantizationScheme, str]:
        groups = self.config.config_groups if self.config is not None else {}
        for scheme in groups.values():
            if isinstance(scheme, QuantizationScheme) and _targets(scheme, linear):
                assert self.config is not None
                return scheme, str(getattr(scheme, "format", None) or self.config.format)
        raise CheckpointError(
            f"{self.source.folder} stores {linear} in a way that its config.json does not tell"
        )


def _targets(scheme: QuantizationScheme, linear: str) -> bool:
    return any(
        re.match(target.removeprefix("re:"), linear) if target.startswith("re:") else
        target in ("Linear", linear)
        for target in scheme.targets
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer of a folder."""

    side: _Weights
    prefix: str
    units: Sequence[UnitMap]
    norm_offset: float

    def used(self, name: str) -> Tensor:
        """The linear's weights [O, K] with each column as large as its input is made."""
        weight = self.side.read(self.prefix + name)
        unit = next(unit for unit in self.units if name in unit.linears)
        if unit.fold is None:
            return weight
        if unit.fold_is_linear:
            return weight * self._columns(self.used(unit.fold).norm(dim=1), weight.shape[1])
        norm = self.side.source.read(f"{self.prefix}{unit.fold}.weight").float()
        return weight * (norm + self.norm_offset)

    def _columns(self, rows: Tensor, columns: int) -> Tensor:
        """[K] from the rows that make it: query heads share a value head (GQA)."""
        if len(rows) == columns:
            return rows
        config = _config(self.side.source.folder)
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        if len(rows) % head or columns % len(rows):
            raise CheckpointError(f"{self.prefix}v_proj has {len(rows)} rows for {columns} columns")
        shared = rows.view(-1, 1, head).expand(-1, columns // len(rows), head)
        return shared.reshape(-1)


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} has no readable config.json; download it again") from error
    return config
