"""How much of a device's data sheet an engine reaches, and what its steps cost besides."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Final

from whet.core.spec import SIXTEEN_BIT
from whet.predict.performance.work import Work

EIGHT_BIT: Final = frozenset({"W8A8-INT8", "FP8", "FP8_BLOCK", "W4A8_FP8"})
"""Stored schemes whose products run at the 8-bit rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """Shares of the data sheet in (0, 1], and seconds.

    ``bandwidth`` and ``compute`` are those of linear layers, by stored scheme, or by scheme and
    library (``W4A16/humming``) where one was asked for. What is not listed is taken as its scheme,
    then as FP8 where it computes in 8 bits, else as W4A16. ``layer_s`` is a layer's cost in every
    step, ``sequence_s`` that of each sequence in it. ``step_s`` is the host's work on a step,
    ``prefill_s`` that on a step with a prompt in it. ``request_s``, ``message_s`` and ``turns`` are
    the front end's (``StepModel``).

    What no calibration has measured yet is from NVIDIA's measurements of an H200, published with
    AIConfigurator 0.12 (``custom_allreduce_perf`` and ``moe_perf`` of vLLM 0.24, ``nccl_perf`` of
    NCCL 2.29): ``reduce_s``, an all-reduce in a CUDA graph, 4 to 7 µs; ``gather_s``, a gather or
    scatter of the ranks' tokens, 5 to 13 µs; ``link``, the share of the data sheet that large ones
    reach, 0.36 to 0.5; ``expert_s``, a layer of experts beyond its bytes and operations, 22 µs.
    ``send_s``, the hand-over between two stages of a pipeline, is that tool's own constant.
    ``expert_host_s`` is the host's work on a layer of experts outside of a CUDA graph: a step with
    a prompt took 100 ms, and 20 in a graph (vLLM 0.33, four H100s, 48 layers; results/x4-h100).
    ``gather_host_s`` is what it adds where ranks gather and scatter around them: 143 ms.
    """

    bandwidth: Mapping[str, float]
    compute: Mapping[str, float]
    kv_bandwidth: float
    attention: float
    layer_s: float
    step_s: float
    sequence_s: float
    prefill_s: float
    request_s: float
    message_s: float
    turns: float
    reduce_s: float = 6e-6
    gather_s: float = 10e-6
    link: float = 0.4
    expert_s: float = 22e-6
    expert_host_s: float = 1.7e-3
    gather_host_s: float = 0.9e-3
    send_s: float = 10e-6

    def of(self, scheme: str) -> tuple[float, float]:
        """Bandwidth and compute shares of a scheme."""
        stored = scheme.partition("/")[0]
        alike = (scheme, stored, "FP8" if stored in EIGHT_BIT else "W4A16", "16bit")
        names = alike if stored != SIXTEEN_BIT else alike[-1:]
        known = next(name for name in names if name in self.bandwidth)
        return self.bandwidth[known], self.compute[known]


_STORED: Final = "calibrations.json"
_PARALLEL_ERROR: Final = 0.3
_EXPERT_ERROR: Final = 0.4
"""Stated errors of what no calibration has, added as independent ones."""
_NEAREST: Final = {"H100 SXM": "H200", "H100 PCIe": "H200", "B200": "H200"}
"""Where nothing was measured: whose shares of the data sheet are taken."""
_DEFAULT: Final = "H200"
_UNMEASURED_ERROR: Final = 0.4
"""Stated error of a GPU whose coefficients are another one's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Coefficients with their origin.

    ``errors`` are the p95 of the relative error of TTFT, TPOT and E2E (``ttft`` …) on
    configurations that were not fitted.
    """

    gpu: str
    engine: str
    source: str
    errors: Mapping[str, float]
    coefficients: Coefficients

    def extended(self, work: Work) -> Calibration:
        """With wider errors where the work is divided as no calibration was, or has experts."""
        unknown = {}
        if work.devices * work.stages * work.ranks > 1:
            unknown["several GPUs"] = _PARALLEL_ERROR
        if work.expert_bytes:
            unknown["experts"] = _EXPERT_ERROR
        if not unknown:
            return self
        errors = {name: math.hypot(error, *unknown.values()) for name, error in self.errors.items()}
        source = f"{self.source}; {' and '.join(unknown)} never measured"
        return replace(self, source=source, errors=errors)

    @property
    def text(self) -> str:
        """Where the figures come from, in one line."""
        return f"{self.source}, {self.engine}"


def calibration_of(gpu: str) -> Calibration:
    """The calibration of a GPU; another one's shares, with a wider error, where it has none."""
    stored = _calibrations()
    if gpu in stored:
        return stored[gpu]
    other = stored[_NEAREST.get(gpu, _DEFAULT)]
    return Calibration(
        gpu=gpu,
        engine=other.engine,
        source=f"data sheet, with the shares of an {other.gpu}",
        errors={name: max(each, _UNMEASURED_ERROR) for name, each in other.errors.items()},
        coefficients=other.coefficients,
    )


@cache
def _calibrations() -> dict[str, Calibration]:
    text = resources.files(__package__).joinpath(_STORED).read_text(encoding="utf-8")
    return {
        each["gpu"]: Calibration(**each | {"coefficients": Coefficients(**each["coefficients"])})
        for each in json.loads(text)
    }
