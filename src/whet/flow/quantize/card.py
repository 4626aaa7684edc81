"""The model card of a published checkpoint."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from whet._version import __version__
from whet.core.llama_cpp import GGUF_NAME
from whet.core.records.quant import CalibrationFacts, QuantizedCheckpoint, UnitError
from whet.core.spec import GGUF_SCHEMES
from whet.core.units import human_bytes, human_duration
from whet.report.writers.markdown import safe

CARD: Final = "README.md"
MARK: Final = "<!-- Written by whet. Without this line, whet leaves the card as it is. -->"
_TEMPLATE: Final = Path(__file__).with_name("card.md.j2")


def model_card(
    done: QuantizedCheckpoint, repo: str, base: str | None, licence: Mapping[str, str]
) -> str:
    """Return the text of the card, with the figures of the record.

    ``base`` is the hub id of the source; ``licence`` are the licence keys of its card.
    """
    from huggingface_hub import ModelCard, ModelCardData

    gguf = done.scheme in GGUF_SCHEMES
    engine, stored = ("llama.cpp", "gguf") if gguf else ("vllm", "compressed-tensors")
    link = f"[{safe(base)}](https://huggingface.co/{quote(base)})" if base else None
    metadata: dict[str, Any] = {
        **licence,
        "base_model": base,
        "base_model_relation": "quantized" if base else None,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [*dict.fromkeys(["whet", engine, stored, done.scheme.lower(), done.method])],
    }
    card = ModelCard.from_template(
        ModelCardData(**metadata),
        template_path=str(_TEMPLATE),
        mark=MARK,
        title=repo.rpartition("/")[2],
        origin=link or "A 16-bit checkpoint",
        scheme=safe(done.scheme),
        method=safe(done.method),
        size=human_bytes(done.weight_bytes),
        bits=done.bits_per_weight,
        format=stored,
        serve=_serve_line(done, repo),
        recipe=[(name, safe(value)) for name, value in _recipe(done)],
        errors=list(_errors(done.units)),
    )
    return str(card)


def _serve_line(done: QuantizedCheckpoint, repo: str) -> str:
    if done.scheme in GGUF_SCHEMES:
        return f"llama-server --hf-repo {repo} --hf-file {GGUF_NAME}"
    return f"vllm serve {repo}{' --kv-cache-dtype fp8' if done.kv_cache == 'fp8' else ''}"


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


def _errors(units: Sequence[UnitError]) -> Iterator[tuple[str, ...]]:
    """Yield the errors by kind of unit; nothing where none was measured."""
    kinds: dict[str, list[UnitError]] = {}
    for unit in units:
        kinds.setdefault(unit.unit.rpartition(".")[2], []).append(unit)
    for kind, errors in kinds.items():
        yield (
            safe(kind),
            str(len(errors)),
            f"{statistics.median(unit.error for unit in errors):.2e}",
            f"{statistics.median(unit.rtn_error for unit in errors):.2e}",
            f"{max(unit.error for unit in errors):.2e}",
        )
