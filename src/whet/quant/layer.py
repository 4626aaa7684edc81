"""One decoder layer, from 16 bit to what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.records import UnitError
from whet.quant.architecture import UNITS, UnitMap, layer_prefix
from whet.quant.fold import row_scale, snap_for
from whet.quant.gram import InputStats, output_error
from whet.quant.methods import Fitted, Method, UnitProblem
from whet.quant.packing import pack, unpack
from whet.quant.rounding import Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """The stored weight of a linear is W · ``columns`` [K] / ``rows`` [O, 1]."""

    columns: Tensor
    rows: Tensor

    def scaled(self, weight: Tensor) -> Tensor:
        """From the source's basis to the stored one."""
        return weight * self.columns / self.rows

    def restored(self, weight: Tensor) -> Tensor:
        """Back again."""
        return weight * self.rows / self.columns


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedLayer:
    """``tensors`` by name within the layer, on the host; the basis of each linear; the errors."""

    tensors: dict[str, Tensor]
    bases: dict[str, Basis]
    errors: tuple[UnitError, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerQuantizer:
    """What every layer of a run shares."""

    method: Method
    grid: Grid
    head_dim: int
    device: torch.device

    @torch.no_grad()
    def quantize(
        self, index: int, tensors: Mapping[str, Tensor], stats: Mapping[str, InputStats]
    ) -> QuantizedLayer:
        """The layer as it is stored. ``stats`` is empty for a method that looks at no input.

        Raises ``QuantizationError`` where a weight is not finite.
        """
        problems = [self._problem(index, unit, tensors, stats.get(unit.name)) for unit in UNITS]
        fitted = [self.method.fit(problem) for problem in problems]
        bases = self._bases(tensors, fitted)
        stored = {**tensors, **fold_scales(tensors, bases)}
        errors = []
        for unit, problem, fit in zip(UNITS, problems, fitted, strict=True):
            restored = self._store(unit, fit, bases, stored)
            if problem.stats is not None:
                errors.append(unit_error(problem, fit.ratio, restored))
        host = {name: tensor.to("cpu").contiguous() for name, tensor in stored.items()}
        kept = {
            name: Basis(columns=basis.columns.to("cpu"), rows=basis.rows.to("cpu"))
            for name, basis in bases.items()
        }
        return QuantizedLayer(tensors=host, bases=kept, errors=tuple(errors))

    def _problem(
        self, index: int, unit: UnitMap, tensors: Mapping[str, Tensor], stats: InputStats | None
    ) -> UnitProblem:
        parts = [tensors[f"{linear}.weight"] for linear in unit.linears]
        weight = torch.cat([part.to(self.device, torch.float32) for part in parts])
        name = f"{layer_prefix(index).removeprefix('model.')}{unit.name}"
        if not bool(torch.isfinite(weight).all()):
            raise QuantizationError(
                f"a weight of {name} is not finite; download the checkpoint again, or repair it"
            )
        return UnitProblem(
            name=name,
            weight=weight,
            stats=stats,
            snap=snap_for(unit, tensors, self.head_dim),
            unclipped_rows=sum(part.shape[0] for part in parts[: unit.unclipped]),
            grid=self.grid,
        )

    def _bases(self, tensors: Mapping[str, Tensor], fitted: Sequence[Fitted]) -> dict[str, Basis]:
        """Each linear's columns are scaled by its own unit, its rows by the unit that it feeds."""
        divided = {
            unit.fold: fit.column_scale
            for unit, fit in zip(UNITS, fitted, strict=True)
            if unit.fold_is_linear and fit.ratio is not None
        }
        bases = {}
        for unit, fit in zip(UNITS, fitted, strict=True):
            for linear in unit.linears:
                outputs = tensors[f"{linear}.weight"].shape[0]
                rows = torch.ones(outputs, device=self.device)
                if linear in divided:
                    rows = row_scale(divided[linear], outputs, self.head_dim)
                bases[linear] = Basis(columns=fit.column_scale, rows=rows.unsqueeze(1))
        return bases

    def _store(
        self, unit: UnitMap, fit: Fitted, bases: Mapping[str, Basis], stored: dict[str, Tensor]
    ) -> Tensor:
        """Replace the unit's weights in ``stored``; returns what an engine will see, [O, K]."""
        restored, start = [], 0
        for linear in unit.linears:
            rows = bases[linear].rows
            stop = start + rows.shape[0]
            scale = self.grid.stored_scale(fit.scale[start:stop] / rows)
            packed = pack(fit.weight[start:stop] / rows, scale, self.grid)
            restored.append(bases[linear].restored(unpack(packed, self.grid)))
            del stored[f"{linear}.weight"]
            stored |= {f"{linear}.{name}": tensor for name, tensor in packed.items()}
            start = stop
        return torch.cat(restored)


def fold_scales(tensors: Mapping[str, Tensor], bases: Mapping[str, Basis]) -> dict[str, Tensor]:
    """The norms and biases that change, so that the layer answers what it answered before."""
    changed = {}
    for unit in UNITS:
        if not unit.fold_is_linear:
            norm = tensors[f"{unit.fold}.weight"]
            columns = bases[unit.linears[0]].columns
            changed[f"{unit.fold}.weight"] = (norm.to(columns) / columns).to(norm.dtype)
    for linear, basis in bases.items():
        bias = tensors.get(f"{linear}.bias")
        if bias is not None:
            changed[f"{linear}.bias"] = (bias.to(basis.rows) / basis.rows.squeeze(1)).to(bias.dtype)
    return changed


def unit_error(problem: UnitProblem, ratio: float | None, restored: Tensor) -> UnitError:
    """‖X(W−Ŵ)ᵀ‖² / ‖XWᵀ‖² of what was stored, beside round-to-nearest's. 0 where XWᵀ is 0."""
    assert problem.stats is not None
    weight, gram, grid = problem.weight, problem.stats.gram, problem.grid
    nearest = grid.round(weight, grid.scales(weight)).to(grid.dtype).float()
    whole = output_error(weight, gram)
    return UnitError(
        unit=problem.name,
        error=output_error(restored - weight, gram) / whole if whole else 0.0,
        rtn_error=output_error(nearest - weight, gram) / whole if whole else 0.0,
        ratio=ratio,
    )
