"""How often the quality gate's intervals and verdicts are right, by simulation.

    python -m benchmarks.gate_coverage OUT --samples 2000

Writes ``perplexity.csv`` (coverage, wrong passes and wrong fails of the perplexity rule at a
tolerance of 1 %) to OUT.

Every figure comes from the functions that the gate calls. The interval of a perplexity ratio moves
with the true change, so that one simulated sample is judged at every change.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from whet.core.records.quality import QualityRecord
from whet.core.records.summary import Estimate
from whet.quality.statistics import broken_documents, perplexity_ratio
from whet.quality.verdicts import Findings, verdicts

TOLERANCE: Final = 0.01
SPREAD: Final = 0.02
"""Standard deviation of a document's loss change, in nats per token."""
BROKEN_SHARE, BROKEN_SHIFT = 0.02, 0.5
BASELINE: Final = QualityRecord(
    variant="baseline",
    baseline="baseline",
    perplexity=None,
    perplexity_ratio=None,
    nll=(),
    tasks=(),
    answers=(),
    examples=(),
    verdicts=(),
    reason=None,
    seconds=0.0,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Documents with a true loss change of 0 on average."""

    changes: Any
    tokens: Any

    def ratio(self) -> Estimate:
        """Return the perplexity ratio as the gate computes it."""
        return perplexity_ratio(*self.pairs())

    def broken(self) -> bool:
        """Return whether the rule for single documents fails."""
        return bool(broken_documents(*self.pairs()))

    def pairs(self) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
        """Return (Σ −log p, tokens) per document of the variant and of its baseline."""
        tokens = self.tokens.tolist()
        sums = (self.changes * self.tokens).tolist()
        return list(zip(sums, tokens, strict=True)), [(0.0, count) for count in tokens]


def draw(kind: str, documents: int, rng: Generator) -> Sample:
    """Draw documents of 32 to 512 tokens whose loss changes have the distribution ``kind``."""
    tokens = rng.integers(32, 513, documents)
    return Sample(changes=_CHANGES[kind](documents, rng), tokens=tokens)


def _lognormal(sigma: float, documents: int, rng: Generator) -> Any:
    values = np.exp(sigma * rng.normal(size=documents) - sigma**2 / 2)
    return SPREAD * (values - 1) / math.sqrt(math.exp(sigma**2) - 1)


def _broken(documents: int, rng: Generator) -> Any:
    broken = rng.random(documents) < BROKEN_SHARE
    shift = BROKEN_SHIFT * (broken - BROKEN_SHARE)
    return shift + rng.normal(0, SPREAD / 4, documents)


_CHANGES: Final[Mapping[str, Any]] = {
    "normal": lambda count, rng: rng.normal(0, SPREAD, count),
    "t, 3 df": lambda count, rng: SPREAD * rng.standard_t(3, count) / math.sqrt(3),
    "lognormal 1": lambda count, rng: _lognormal(1.0, count, rng),
    "lognormal 1.5": lambda count, rng: _lognormal(1.5, count, rng),
    "2% broken": _broken,
}
KINDS: Final = tuple(_CHANGES)


def judge(ratio: Estimate, change: float) -> str:
    """Return the gate's verdict at ``TOLERANCE`` if the true change were ``change``."""
    ends = (None if end is None else end * (1 + change) for end in (ratio.low, ratio.high))
    low, high = ends
    moved = replace(ratio, value=ratio.value * (1 + change), low=low, high=high)
    findings = Findings(ratio=moved, tasks=(), answers=(), baseline=BASELINE)
    return verdicts(findings, [TOLERANCE])[0][0][1]


def perplexity_row(kind: str, documents: int, samples: int, seed: int = 0) -> dict[str, Any]:
    """Return the shares of ``samples`` whose interval covers and whose verdicts are wrong."""
    rng = np.random.default_rng([seed, documents, KINDS.index(kind)])
    drawn = [draw(kind, documents, rng) for _ in range(samples)]
    ratios = [sample.ratio() for sample in drawn]
    covered = [(r.low is None or r.low <= 1) and (r.high is None or r.high >= 1) for r in ratios]
    return {
        "losses": kind,
        "documents": documents,
        "samples": samples,
        "coverage": np.mean(covered),
        "pass_at_0": np.mean([judge(r, 0.0) == "pass" for r in ratios]),
        "fail_at_0.9": np.mean([judge(r, 0.009) == "fail" for r in ratios]),
        "pass_at_1": np.mean([judge(r, TOLERANCE) == "pass" for r in ratios]),
        "fail_at_2": np.mean([judge(r, 0.02) == "fail" for r in ratios]),
        "document_rule_fails": np.mean([sample.broken() for sample in drawn]),
    }


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=2000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_rows(
        options.out / "perplexity.csv",
        (perplexity_row(kind, n, options.samples) for n in (60, 120, 200) for kind in KINDS),
    )


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write and print each row as it comes."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = None
        for row in rows:
            shown = {
                k: f"{v:.4f}" if isinstance(v, np.floating | float) else v for k, v in row.items()
            }
            if writer is None:
                writer = csv.DictWriter(file, row)
                writer.writeheader()
            writer.writerow(shown)
            print(*shown.values(), sep=", ", flush=True)


if __name__ == "__main__":
    main()
