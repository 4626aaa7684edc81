"""How far quantized checkpoints are from their source on held-out text, and the paired tests.

Every checkpoint, whoever wrote it, is read back and run by the same code, in float32 on a CPU. The
unit of every test is a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.table import Row
from whet.checkpoint import read_facts
from whet.core.records.summary import Estimate
from whet.core.spec import RecipeSpec
from whet.quality.statistics import document_mean, sign_flip
from whet.quant import load_calibration
from whet.quant.auto import Sums, divergences
from whet.quant.layer_pass import read_model

Name = tuple[str, str]
"""Tool and method."""
_MILLI: Final = 1e3
_NORMAL: Final = 1.96
_POWER: Final = 0.84
"""Quantile of a power of 80%."""


def measure(
    source: Path, folders: Mapping[Name, Path], heldout: Path, draw: Mapping[str, int]
) -> dict[Name, Sums]:
    """(Σ KL, tokens) of each document by tool and method, documents in one order for all.

    ``draw`` has ``samples``, ``max_tokens`` and ``seed`` of the documents.
    """
    documents = load_calibration(heldout, source, **draw)
    model = read_model(read_facts(source), "cpu")
    sums = divergences(model, list(folders.values()), RecipeSpec(), documents)
    return dict(zip(folders, sums, strict=True))


def document_rows(sums: Mapping[Name, Sums], about: Row) -> Iterator[Row]:
    """A line for each document of each checkpoint."""
    for (tool, method), of_documents in sums.items():
        for number, (total, tokens) in enumerate(of_documents):
            what = {"tool": tool, "method": method, "document": number}
            yield about | what | {"tokens": tokens, "kl_sum": total}


def pair_rows(sums: Mapping[Name, Sums], about: Row) -> Iterator[Row]:
    """A line for each comparison: AWQ with GPTQ of one tool, and the tools by one method.

    ``difference`` is the first's mean KL minus the second's, in 10⁻³ nats a token, ``p`` by random
    signs of the documents' differences. ``detectable`` is the difference that a test of these
    documents finds in four of five cases.
    """
    for first, second in _pairs(list(sums)):
        sides = zip(sums[first], sums[second], strict=True)
        pairs = [(here - there, tokens) for (here, tokens), (there, _) in sides]
        means = [_milli(document_mean(each)) for each in (sums[first], sums[second], pairs)]
        here, there, change = means
        assert change.low is not None
        assert change.high is not None
        error = (change.high - change.low) / (2 * _NORMAL)
        yield about | {
            "first": " ".join(first),
            "second": " ".join(second),
            "first_kl": here.value,
            "second_kl": there.value,
            "difference": change.value,
            "low": change.low,
            "high": change.high,
            "documents": len(pairs),
            "first_larger": sum(each > 0 for each, _ in pairs),
            "p": sign_flip([each for each, _ in pairs]),
            "detectable": (_NORMAL + _POWER) * error,
        }


def _pairs(names: Sequence[Name]) -> Iterator[tuple[Name, Name]]:
    for place, (tool, method) in enumerate(names):
        for other in names[place + 1 :]:
            if other[0] == tool or other[1] == method:
                yield (tool, method), other


def _milli(estimate: Estimate) -> Estimate:
    return estimate.mapped(lambda value: _MILLI * value)
