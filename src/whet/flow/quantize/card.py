"""The model card of a published checkpoint."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml

from whet._version import __version__
from whet.core.llama_cpp import GGUF_NAME
from whet.core.quote import yaml_text
from whet.core.records import CalibrationFacts, QuantizedCheckpoint, UnitError
from whet.core.spec import GGUF_SCHEMES
from whet.core.units import human_bytes, human_duration
from whet.report.writers.markdown import safe

CARD: Final = "README.md"
MARK: Final = "<!-- Written by whet. Without this line, whet leaves the card as it is. -->"

_LICENSE_KEYS: Final = ("license", "license_name", "license_link")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """The hub id of the source, where it has one, and its licence."""

    base_model: str | None = None
    license: tuple[tuple[str, str], ...] = ()


def licence_of(metadata: object) -> tuple[tuple[str, str], ...]:
    """The licence keys of a card's metadata that are text."""
    data = metadata if isinstance(metadata, dict) else {}
    return tuple((key, data[key]) for key in _LICENSE_KEYS if isinstance(data.get(key), str))


def read_front_matter(text: str) -> dict[str, Any]:
    """The YAML at the head of a card; empty where it is missing or invalid."""
    head, *rest = text.removeprefix("\ufeff").lstrip().split("---\n", 2)
    if head or len(rest) < 2:
        return {}
    try:
        data = yaml.safe_load(rest[0])
    except yaml.YAMLError:
        return {}
    return data if isinstance(data, dict) else {}


def model_card(done: QuantizedCheckpoint, repo: str, lineage: Lineage) -> str:
    """The text of the card, with the figures of the record."""
    parts = [
        f"---\n{yaml_text(_metadata(done, lineage))}---",
        MARK,
        f"# {repo.rpartition('/')[2]}",
        _opening(done, lineage),
        "## Serve it",
        f"```\n{_serve_line(done, repo)}\n```",
        "## How it was made",
        _table(("", ""), list(_recipe(done))),
        *_errors(done.units),
    ]
    return "\n\n".join(parts) + "\n"


def _serve_line(done: QuantizedCheckpoint, repo: str) -> str:
    if done.scheme in GGUF_SCHEMES:
        return f"llama-server --hf-repo {repo} --hf-file {GGUF_NAME}"
    return f"vllm serve {repo}{' --kv-cache-dtype fp8' if done.kv_cache == 'fp8' else ''}"


def _formats(done: QuantizedCheckpoint) -> tuple[str, str]:
    """What serves it, and the format."""
    return ("llama.cpp", "gguf") if done.scheme in GGUF_SCHEMES else ("vllm", "compressed-tensors")


def _metadata(done: QuantizedCheckpoint, lineage: Lineage) -> dict[str, Any]:
    base = {"base_model": lineage.base_model, "base_model_relation": "quantized"}
    tags = ["whet", *_formats(done), done.scheme.lower(), done.method]
    return {
        **dict(lineage.license),
        **(base if lineage.base_model else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys(tags)),
    }


def _opening(done: QuantizedCheckpoint, lineage: Lineage) -> str:
    base = lineage.base_model
    of = f"[{safe(base)}](https://huggingface.co/{quote(base)})" if base else "A 16-bit checkpoint"
    return (
        f"{of}, quantized to {safe(done.scheme)} with {safe(done.method)}: "
        f"{human_bytes(done.weight_bytes)}, "
        f"{done.bits_per_weight:.2f} bits a weight of the decoder's linear layers, in the "
        f"{_formats(done)[1]} format."
    )


def _recipe(done: QuantizedCheckpoint) -> Iterator[tuple[str, str]]:
    group = "" if done.group_size is None else f", groups of {done.group_size}"
    yield "recipe", f"{done.method} {done.scheme}{group}"
    if done.kept_scheme is not None:
        wider = sum(unit.kept for unit in done.units)
        yield "kept wider", f"{wider} of {len(done.units)} units in {done.kept_scheme}"
    if done.kv_cache is not None:
        yield "KV cache", f"{done.kv_cache}, calibrated scales"
    if done.calibration is not None:
        yield "calibration", _calibration(done.calibration)
    whet = f"whet {__version__}"
    writer = whet if done.writer == "whet" else f"{done.writer}, started by {whet},"
    yield "made by", f"{writer} in {human_duration(done.seconds)} on {done.device}"
    yield "source weights", f"sha256 {done.source_weights_sha256}"
    yield "these weights", f"sha256 {done.weights_sha256}"


def _calibration(facts: CalibrationFacts) -> str:
    form = f" ({facts.form})" if facts.form else ""
    return (
        f"{facts.samples} samples{form}, {facts.tokens} tokens, at most {facts.max_tokens} each, "
        f"seed {facts.seed}, from {Path(facts.source).name}, sha256 {facts.sha256}"
    )


def _errors(units: Sequence[UnitError]) -> Iterator[str]:
    """The errors by kind of unit; empty where none was measured."""
    if not units:
        return
    kinds: dict[str, list[UnitError]] = {}
    for unit in units:
        kinds.setdefault(unit.unit.rpartition(".")[2], []).append(unit)
    rows = [
        (
            kind,
            str(len(errors)),
            f"{statistics.median(unit.error for unit in errors):.2e}",
            f"{statistics.median(unit.rtn_error for unit in errors):.2e}",
            f"{max(unit.error for unit in errors):.2e}",
        )
        for kind, errors in kinds.items()
    ]
    yield "## Output error"
    yield _table(("unit", "layers", "median", "round to nearest", "largest"), rows)
    yield (
        "‖X(W−Ŵ)ᵀ‖² / ‖XWᵀ‖² on the calibration text, of linear layers that an engine runs as "
        "one. It compares recipes. The quality of the answers has to be measured separately."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(safe, line))} |" for line in lines)
