"""What a deployment is compared with: a run's variant, or the same from a bundle's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from whet.core.errors import StorageError, UsageError
from whet.core.load import Load
from whet.core.quote import shell_word
from whet.core.records.codec import decode, encode
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine
from whet.core.records.envelope import Envelope
from whet.core.records.quality_checks import GoldenProbes
from whet.core.redact import redact_json
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import read_json
from whet.watch.envelope import envelope_of
from whet.watch.signals import References

T = TypeVar("T")
FOLDER: Final = "watch"
"""The folder of a bundle that holds these records."""
_ENVELOPE, _GOLDEN, _PLAIN = "envelope.json", "golden.json", "golden-16bit.json"
_ENGINE, _SPEC = "engine.json", "spec.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchSource(References):
    """The deployed variant: its references, the command that was measured and the run's spec."""

    engine: ResolvedEngine
    spec: Spec


def source_of_run(run: Run, variant: str, point: Load) -> WatchSource:
    """The references of one measured variant at one load.

    Raises ``UsageError`` where the run has no usable trial of it.
    """
    spec = run.require_spec()
    own = run.engines[variant].variant
    baseline = run.engines.get(spec.baseline)
    quantized = own.scheme not in UNQUANTIZED and (
        baseline is None or baseline.variant.model_path != own.model_path
    )
    return WatchSource(
        envelope=envelope_of(run, variant, point),
        golden=_stored_golden(run, variant),
        plain=_stored_golden(run, spec.baseline) if quantized else None,
        engine=run.engines[variant],
        spec=spec,
    )


def _stored_golden(run: Run, variant: str) -> GoldenProbes | None:
    path = run.store.path("golden", f"{variant}.json")
    golden = _read(path, GoldenProbes) if path.exists() else None
    return golden if golden is not None and golden.probes else None


def read_source(path: Path) -> WatchSource:
    """The source in ``path``: a bundle of whet deploy, or a run, whose recommendation it takes.

    Raises ``UsageError`` where it is neither, or the run recommends nothing.
    """
    if (path / FOLDER / _ENVELOPE).is_file():
        return _read_folder(path / FOLDER)
    if not (path / "journal.jsonl").is_file():
        raise UsageError(f"{path} is neither a run nor a bundle", fix="write one: whet deploy RUN")
    run = Run.read(path)
    chosen = run.decision.recommendation if run.decision is not None else None
    if chosen is None:
        raise UsageError(
            f"{path} recommends nothing to watch",
            fix=f"deploy a variant of it first: whet deploy {shell_word(str(path))} --variant NAME",
        )
    return source_of_run(run, chosen.variant, chosen.load)


def source_files(source: WatchSource) -> dict[str, str]:
    """The records as JSON by path in a bundle; ``read_source`` reads them."""
    records = {
        _ENVELOPE: source.envelope,
        _GOLDEN: source.golden,
        _PLAIN: source.plain,
        _ENGINE: source.engine,
    }
    plain = {name: encode(record) for name, record in records.items() if record is not None}
    plain[_SPEC] = source.spec.model_dump(mode="json")
    return {
        f"{FOLDER}/{name}": redact_json(json.dumps(data, indent=1, ensure_ascii=False)) + "\n"
        for name, data in plain.items()
    }


def _read_folder(folder: Path) -> WatchSource:
    golden, plain = folder / _GOLDEN, folder / _PLAIN
    return WatchSource(
        envelope=_read(folder / _ENVELOPE, Envelope),
        golden=_read(golden, GoldenProbes) if golden.exists() else None,
        plain=_read(plain, GoldenProbes) if plain.exists() else None,
        engine=_read(folder / _ENGINE, ResolvedEngine),
        spec=_read(folder / _SPEC, Spec),
    )


def _read(path: Path, cls: type[T]) -> T:
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} is missing or damaged", fix="write the bundle again: whet deploy RUN"
        ) from error
    return decode(cls, data)
