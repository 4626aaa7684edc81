"""The figures and the foreign texts that the synthetic run is made of."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.records.summary import Estimate

CONCURRENCY = (1, 4, 8, 16, 32)
VARIANTS = ("fp16", "awq", "awq+draft", "awq+cache", "awq+draft+cache")
SCRIPT = "<script>alert('owned')</script>"
HOSTILE = (
    f"{SCRIPT} | `tick` [link](javascript:alert(1)) {{{{ 7*7 }}}} \x1b[31mred\x1b[0m \u202eevil"
)
FAILED = ("awq+draft", 32)
CONTRADICTED = ("awq+cache", 16)
PRICE = 2.49


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """The strings that a foreign hand may have written."""

    tier: str = "NVIDIA H100 80GB"
    path: str = "/models/demo-target"
    answer: str = '{"order": "A-1041", "status": "shipped"'
    log_line: str = "INFO Using MarlinLinearKernel for CompressedTensorsWNA16"
    failure: str = (
        "the engine ran out of device memory at 32 requests; lower gpu_memory_utilization"
    )
    task: str = "json_extraction"


NASTY = Texts(
    tier=f"H100 {HOSTILE}",
    path=f"/models/{HOSTILE}",
    answer=f"=HYPERLINK(1) {HOSTILE}",
    log_line=f"INFO {HOSTILE}",
    failure=f"=cmd|' /C calc'!A0 {HOSTILE}",
    task=f"json {HOSTILE}",
)


def around(value: float, spread: float, samples: int, *, enough: bool = True) -> Estimate:
    """An estimate with a symmetric interval."""
    return Estimate(
        value=value,
        low=value * (1 - spread),
        high=value * (1 + spread),
        samples=samples,
        enough=enough,
    )


def speed(name: str, size: int) -> float:
    """Output tokens per second of a cell: a saturating curve, speculation paying at small sizes."""
    awq = name.startswith("awq")
    alone, most = (118.0, 3900.0) if awq else (62.0, 2350.0)
    gain = 1.85 - 0.052 * size if "draft" in name else 1.0
    cache = 1.14 if "cache" in name else 1.0
    return alone * size / (1 + alone * size / most) * max(gain, 0.82) * cache


def ttft(name: str, size: int) -> float:
    """Median time to first token in ms."""
    slow = 1.0 if name.startswith("awq") else 1.25
    cache = 0.42 if "cache" in name else 1.0
    return (38.0 + 9.5 * size) * slow * cache * (1.12 if "draft" in name else 1.0)
