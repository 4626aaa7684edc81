"""One decoder layer, from 16 bit to what is stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.records import UnitError
from whet.quant.architecture import UnitMap
from whet.quant.fold import fold_norm, row_scale, snap_for
from whet.quant.gram import InputStats, output_error
from whet.quant.methods import Fitted, Method, UnitProblem
from whet.quant.packing import no_further_than_nearest, pack, unpack
from whet.quant.refit import row_slices
from whet.quant.rounding import Grid, Span
from whet.quant.stream import LayerStats

_FLOAT8_MAX = torch.finfo(torch.float8_e4m3fn).max


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

    def part(self, picked: slice) -> Basis:
        """That of some rows."""
        return Basis(columns=self.columns, rows=self.rows[picked])

    def to(self, device: torch.device) -> Basis:
        """The same on another device."""
        return Basis(columns=self.columns.to(device), rows=self.rows.to(device))


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTask:
    """A layer of the source: ``prefix`` is ``model.layers.3.``, ``tensors`` by name within it.

    ``stats`` is None where inputs were not measured.
    """

    prefix: str
    units: tuple[UnitMap, ...]
    tensors: Mapping[str, Tensor]
    stats: LayerStats | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedLayer:
    """``tensors`` by name within the layer, on the host; the basis of each linear; the errors."""

    tensors: dict[str, Tensor]
    bases: dict[str, Basis]
    errors: tuple[UnitError, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wider:
    """The form in which a mixed recipe keeps sensitive units; ``grid`` None is 16 bit."""

    grid: Grid | None
    dtype: torch.dtype

    def store(self, weight: Tensor) -> dict[str, Tensor]:
        """The tensors of one linear whose scaled weight is ``weight`` [O, K]."""
        if self.grid is None:
            return {"weight": weight.to(self.dtype)}
        span = self.grid.span(weight)
        stored = Span(scale=self.grid.stored_scale(span.scale), zero=span.zero)
        return pack(weight, stored, self.grid)

    def seen(self, weight: Tensor) -> Tensor:
        """What an engine will multiply by: float32 [O, K]."""
        if self.grid is None:
            return weight.to(self.dtype).float()
        return unpack(self.store(weight), self.grid)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerQuantizer:
    """What every layer of a recipe shares."""

    method: Method
    grid: Grid
    wider: Wider | None
    head_dim: int
    norm_offset: float
    clip: bool
    kv_cache: bool
    device: torch.device

    @torch.no_grad()
    def quantize(self, task: LayerTask) -> QuantizedLayer:
        """The layer as it is stored; ``QuantizationError`` for a weight that is not finite."""
        fitted = [self.method.fit(self._problem(task, unit)) for unit in task.units]
        bases = self._bases(task, fitted)
        stored = {**task.tensors, **self._folded(task, bases)}
        errors = []
        for unit in task.units:
            fit = fitted.pop(0)  # what a unit was fitted to is let go once it is stored
            tally = None if task.stats is None else self._tally(task, unit)
            self._store(unit, fit, bases, stored, tally)
            if task.stats is not None and tally is not None:
                self._store_input_scale(unit, task.stats.units[unit.name], bases, stored)
                errors.append(tally.finish(unit_name(task, unit), fit.ratio))
        if self.kv_cache and task.stats is not None:
            stored |= _cache_scales(task.stats, bases, self.grid)
        host = {name: tensor.to("cpu").contiguous() for name, tensor in stored.items()}
        kept = {name: basis.to(torch.device("cpu")) for name, basis in bases.items()}
        return QuantizedLayer(tensors=host, bases=kept, errors=tuple(errors))

    def _problem(self, task: LayerTask, unit: UnitMap) -> UnitProblem:
        parts = [task.tensors[f"{linear}.weight"] for linear in unit.linears]
        weight = stacked(task, unit, self.device)
        name = unit_name(task, unit)
        if not bool(torch.isfinite(weight).all()):
            raise QuantizationError(
                f"a weight of {name} is not finite; download the checkpoint again, or repair it"
            )
        return UnitProblem(
            name=name,
            weight=weight,
            stats=None if task.stats is None else task.stats.units[unit.name],
            snap=snap_for(unit, task.tensors, head_dim=self.head_dim, norm_offset=self.norm_offset),
            unclipped_rows=sum(part.shape[0] for part in parts[: unit.unclipped]),
            grid=self.grid,
            clip=self.clip,
        )

    def _bases(self, task: LayerTask, fitted: Sequence[Fitted]) -> dict[str, Basis]:
        """Each linear's columns are scaled by its own unit, its rows by the unit that it feeds."""
        divided = {
            unit.fold: fit.column_scale
            for unit, fit in zip(task.units, fitted, strict=True)
            if unit.fold_is_linear and fit.ratio is not None
        }
        bases = {}
        for unit, fit in zip(task.units, fitted, strict=True):
            for linear in unit.linears:
                outputs = task.tensors[f"{linear}.weight"].shape[0]
                rows = torch.ones(outputs, device=self.device)
                if linear in divided:
                    rows = row_scale(divided[linear], outputs, self.head_dim)
                bases[linear] = Basis(columns=fit.column_scale, rows=rows.unsqueeze(1))
        return bases

    def _folded(self, task: LayerTask, bases: Mapping[str, Basis]) -> dict[str, Tensor]:
        return fold_scales(task.units, task.tensors, bases, self.norm_offset)

    def _tally(self, task: LayerTask, unit: UnitMap) -> _Tally:
        assert task.stats is not None
        own = {linear: task.tensors[f"{linear}.weight"] for linear in unit.linears}
        return _Tally(
            sources=own,
            span=self.grid.span(stacked(task, unit, self.device)),
            gram=task.stats.units[unit.name].gram,
            grid=self.grid,
            wider=self.wider,
        )

    def _store(
        self,
        unit: UnitMap,
        fit: Fitted,
        bases: Mapping[str, Basis],
        stored: dict[str, Tensor],
        tally: _Tally | None,
    ) -> None:
        """Replace the unit's weights in ``stored``; ``tally`` is shown what an engine will see."""
        start = 0
        for linear in unit.linears:
            rows = bases[linear].rows
            picked = slice(start, start + rows.shape[0])
            start = picked.stop
            span = fit.span.rows(picked)
            span = Span(scale=self.grid.stored_scale(span.scale / rows), zero=span.zero)
            weight = fit.weight[picked] / rows
            packed = pack(weight, span, self.grid)
            seen = unpack(packed, self.grid)
            if not no_further_than_nearest(seen, weight, _wide(span), self.grid):
                raise AssertionError(f"{linear} was packed further from its value than rounding")
            del stored[f"{linear}.weight"]
            stored |= {f"{linear}.{name}": tensor for name, tensor in packed.items()}
            if tally is not None:
                tally.add(linear, seen, bases[linear], picked)

    def _store_input_scale(
        self,
        unit: UnitMap,
        stats: InputStats,
        bases: Mapping[str, Basis],
        stored: dict[str, Tensor],
    ) -> None:
        if not self.grid.static_inputs:
            return
        peak = (stats.max_abs / bases[unit.linears[0]].columns).max()
        scale = self.grid.stored_scale((peak / _FLOAT8_MAX).reshape(1))
        stored |= {f"{linear}.input_scale": scale.clone() for linear in unit.linears}


class _Tally:
    """Adds up a unit's ‖X(W−Ŵ)ᵀ‖², ‖XWᵀ‖² and what they would be in other forms, part by part."""

    def __init__(
        self,
        *,
        sources: Mapping[str, Tensor],
        span: Span,
        gram: Tensor,
        grid: Grid,
        wider: Wider | None,
    ) -> None:
        """``span`` [O, K/g] is that of the whole unit; ``gram`` is H, [K, K]."""
        self._sources, self._span, self._gram = sources, span, gram
        self._grid, self._wider = grid, wider
        self._weights = 0
        self._whole = self._stored = self._nearest = self._kept = 0.0

    def add(self, linear: str, seen: Tensor, basis: Basis, picked: slice) -> None:
        """``seen`` [O, K] is what an engine will see of ``linear``, the unit's rows ``picked``."""
        source, own = self._sources[linear], self._span.rows(picked)
        self._weights += source.numel()
        for rows in row_slices(source):
            weight, part = source[rows].to(self._gram), basis.part(rows)
            self._whole += output_error(weight, self._gram)
            self._stored += self._error(part.restored(seen[rows]), weight)
            rounded = self._grid.round(weight, own.rows(rows)).to(self._grid.dtype)
            self._nearest += self._error(rounded.float(), weight)
            if self._wider is not None:
                wide = self._wider.seen(part.scaled(weight))
                self._kept += self._error(part.restored(wide), weight)

    def _error(self, there: Tensor, weight: Tensor) -> float:
        return output_error(there.sub_(weight), self._gram)

    def finish(self, name: str, ratio: float | None) -> UnitError:
        """The errors as a part of ‖XWᵀ‖²; 0 where that is 0."""
        whole = self._whole or math.inf
        return UnitError(
            unit=name,
            error=self._stored / whole,
            rtn_error=self._nearest / whole,
            ratio=ratio,
            weights=self._weights,
            wide_error=None if self._wider is None else self._kept / whole,
        )


def unit_name(task: LayerTask, unit: UnitMap) -> str:
    """``layers.3.qkv``, or ``midlayer.qkv``."""
    return task.prefix[max(task.prefix.rfind("layers."), 0) :] + unit.name


def stacked(task: LayerTask, unit: UnitMap, device: torch.device) -> Tensor:
    """The unit's linears under one another: float32 [O, K] on ``device``."""
    parts = [task.tensors[f"{linear}.weight"] for linear in unit.linears]
    return torch.cat([part.to(device, torch.float32) for part in parts])


def _wide(span: Span) -> Span:
    return Span(scale=span.scale.float(), zero=span.zero)


def _cache_scales(stats: LayerStats, bases: Mapping[str, Basis], grid: Grid) -> dict[str, Tensor]:
    """The 8-bit scales of keys and values, [1] each; values are as the folded v_proj makes them."""
    rows = bases["self_attn.v_proj"].rows.squeeze(1)
    peaks = {"k": stats.keys.max(), "v": (stats.values / rows).max()}
    return {
        f"self_attn.{name}_scale": grid.stored_scale((peak / _FLOAT8_MAX).reshape(1))
        for name, peak in peaks.items()
    }


def fold_scales(
    units: Sequence[UnitMap],
    tensors: Mapping[str, Tensor],
    bases: Mapping[str, Basis],
    norm_offset: float,
) -> dict[str, Tensor]:
    """The norms and biases that change, so that the layer answers what it answered before."""
    changed = {}
    for unit in units:
        if unit.fold is not None and not unit.fold_is_linear:
            norm = tensors[f"{unit.fold}.weight"]
            columns = bases[unit.linears[0]].columns
            changed[f"{unit.fold}.weight"] = fold_norm(norm, columns, norm_offset)
    for linear, basis in bases.items():
        bias = tensors.get(f"{linear}.bias")
        if bias is not None:
            changed[f"{linear}.bias"] = (bias.to(basis.rows) / basis.rows.squeeze(1)).to(bias.dtype)
    return changed
