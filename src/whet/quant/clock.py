"""Where the seconds went and how much device memory was held at most."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from whet.core.errors import QuantizationError
from whet.core.records import Phase
from whet.core.units import NS_PER_S


class Clock:
    """Adds up the phases of one piece of work on one device."""

    def __init__(self, device: torch.device) -> None:
        """Nothing has been spent yet."""
        self._device = device
        self._spent_ns: dict[str, int] = {}
        self._peak_bytes = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block as ``name``; a GPU's queue is waited for on both sides.

        Where the device's memory runs out inside, a ``QuantizationError`` says what to do.
        """
        self._wait()
        if self._device.type == "cuda":
            # What a phase leaves cached is in pieces of its own sizes, of little use to the next.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        started = time.monotonic_ns()
        try:
            yield
            self._wait()
        except torch.OutOfMemoryError as error:
            raise QuantizationError(
                f"the memory of {self._device} ran out; free it, give shorter calibration samples "
                "(--max-tokens), or quantize on the CPU with --device cpu"
            ) from error
        self._spent_ns[name] = self._spent_ns.get(name, 0) + time.monotonic_ns() - started
        if self._device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self._device)
            self._peak_bytes = max(self._peak_bytes, held)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Seconds by phase, in the order of their first use."""
        return tuple(
            Phase(name=name, seconds=spent / NS_PER_S) for name, spent in self._spent_ns.items()
        )

    @property
    def peak_bytes(self) -> int | None:
        """Device memory at its highest; None on a CPU, whose process holds more than this work."""
        return self._peak_bytes if self._device.type == "cuda" else None

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
