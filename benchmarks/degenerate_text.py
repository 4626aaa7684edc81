"""How often the check of timed answers excludes a model that is compared with itself, and a worse.

    python -m benchmarks.degenerate_text results/gate-simulated/degenerate.csv --runs 200

A prompt makes the model loop by itself with the probability ``loops``; every answer to it does so,
at three loads and on two starts of each server. With the probability ``flips`` an answer is the
other kind, because rounding differs: each answer alone, or all answers of a server to that prompt,
at one load, or on one start. A worse variant loops after ``added`` more of all prompts.

Every verdict comes from the function that a run calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.random import Generator

from benchmarks.gate_coverage import write_rows
from whet.core.records.quality_checks import GateVerdict
from whet.quality import TimedAnswer, examine_traffic

FINE: Final = "The lamp is on its way and comes on Friday."
LOOP: Final = "So: " + "I am sorry. " * 10
LOADS, STARTS = 3, 2
BASELINE: Final = "fp16"

Unit = Literal["answer", "load", "start", "server"]
_DRAWN: Final[Mapping[Unit, tuple[int, int]]] = MappingProxyType(
    {"answer": (LOADS, STARTS), "load": (LOADS, 1), "start": (1, STARTS), "server": (1, 1)}
)
"""Independent flips per prompt and server, over loads and starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """A run's prompts, and how often answers to them loop; ``added`` by one of the variants."""

    prompts: int
    variants: int
    loops: float
    flips: float
    flipped: Unit = "answer"
    added: float = 0.0


def timed(traffic: Traffic, rng: Generator) -> dict[str, list[TimedAnswer]]:
    """Draw the timed answers of a run, the baseline's first and the worse variant's last."""
    prompts, servers = traffic.prompts, traffic.variants + 1
    uniform = rng.random(prompts)
    itself = np.repeat((uniform < traffic.loops)[None], servers, axis=0)
    itself[-1] = uniform < traffic.loops + traffic.added
    flips = rng.random((servers, prompts, *_DRAWN[traffic.flipped])) < traffic.flips
    loops = np.broadcast_to(itself[..., None, None] ^ flips, (servers, prompts, LOADS, STARTS))
    return {
        BASELINE if server == 0 else f"v{server}": [
            TimedAnswer(
                prompt=prompt,
                request=(f"b{load}-t{start}", prompt),
                text=LOOP if loops[server, prompt, load, start] else FINE,
            )
            for prompt, load, start in np.ndindex(prompts, LOADS, STARTS)
        ]
        for server in range(servers)
    }


def verdicts_of(traffic: Traffic, runs: int) -> list[list[GateVerdict]]:
    """Return the variants' verdicts of each simulated run."""
    rng = np.random.default_rng(0)
    return [
        [record.verdict for record in examine_traffic(timed(traffic, rng), BASELINE)[1:]]
        for _ in range(runs)
    ]


def row(traffic: Traffic, runs: int) -> dict[str, Any]:
    """Return the shares of runs that exclude, or caution about, an equal or the worse variant."""
    verdicts = verdicts_of(traffic, runs)
    worse = [each[-1] for each in verdicts] if traffic.added else []
    equal = [set(each[:-1] if traffic.added else each) for each in verdicts]
    return {
        **asdict(traffic),
        "runs": runs,
        "equal_excluded": np.mean(["fail" in each for each in equal]),
        "equal_unsure": np.mean(["unknown" in each for each in equal]),
        "worse_excluded": np.mean([each == "fail" for each in worse]) if worse else "",
        "worse_unsure": np.mean([each == "unknown" for each in worse]) if worse else "",
    }


def settings() -> Iterator[Traffic]:
    """Yield the rows of the table: equal variants, then a worse one among them."""
    for (prompts, variants), (loops, flips), flipped in product(
        ((20, 2), (20, 6), (60, 6), (200, 3)), ((0.0, 0.1), (0.3, 0.3), (0.6, 0.3)), _DRAWN
    ):
        yield Traffic(prompts=prompts, variants=variants, loops=loops, flips=flips, flipped=flipped)
    noise: tuple[tuple[float, Unit], ...] = (
        (0.0, "answer"), (0.1, "answer"), (0.3, "answer"), (0.1, "server"), (0.3, "server")
    )  # fmt: skip
    for prompts, added, (flips, flipped) in product((20, 60, 200), (0.1, 0.2), noise):
        worse = Traffic(prompts=prompts, variants=2, loops=0.2, flips=flips, flipped=flipped)
        yield replace(worse, added=added)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    write_rows(options.out, (row(traffic, options.runs) for traffic in settings()))


if __name__ == "__main__":
    main()
