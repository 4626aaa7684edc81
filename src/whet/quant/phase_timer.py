"""Seconds by phase and peak device memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from whet.core.errors import QuantizationError
from whet.core.records.quant import Phase
from whet.core.units import NS_PER_S


class PhaseTimer:
    """Adds up the phases of one piece of work on one device."""

    def __init__(self, device: torch.device) -> None:
        """Start with no phases."""
        self._device = device
        self._phase_ns: dict[str, int] = {}
        self.peak_bytes: int | None = None
        """Peak device memory; None on a CPU, whose process holds more than this work."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block as ``name``; waits for the GPU on both sides.

        Raises ``QuantizationError`` where the device runs out of memory inside.
        """
        self._wait()
        if self._device.type == "cuda":
            # Blocks that a phase leaves cached rarely fit the sizes of the next.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        started = time.monotonic_ns()
        try:
            yield
            self._wait()
        except torch.OutOfMemoryError as error:
            raise QuantizationError(
                f"the memory of {self._device} ran out",
                fix="free it, give shorter calibration samples "
                "(--max-tokens), or quantize on the CPU with --device cpu",
            ) from error
        self._phase_ns[name] = self._phase_ns.get(name, 0) + time.monotonic_ns() - started
        if self._device.type == "cuda":
            peak_bytes = torch.cuda.max_memory_allocated(self._device)
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Seconds by phase, in the order of their first use."""
        return tuple(
            Phase(name=name, seconds=time_ns / NS_PER_S) for name, time_ns in self._phase_ns.items()
        )

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
