"""What each version of an engine runs on which machine, read from compatibility.csv.

A row says what happens when a lever (a pattern over the words of ``lever_words``) is enabled. Among
the rows that apply the most specific one counts; among equals, the one of the newest version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final, Literal

from whet.core.flags import format_value, settings_of
from whet.core.outside import read_json
from whet.core.provenance import Device
from whet.core.records.engine import ResolvedEngine, Variant
from whet.engines.failures import read_table
from whet.engines.machine import (
    Machine,
    find_machine,
    machine_applies,
    machine_rank,
)

FAULTS: Final = frozenset({"wrong text", "wrong if sampled", "doubtful text"})
"""Answers are wrong: all, or those of requests with a temperature above 0; or reported to be."""
WARNINGS: Final = frozenset({"works, slow", "doubtful", *FAULTS})
STOPS: Final = frozenset({"no effect", "fails", "removed"})
_AND: Final = " & "
_STORED: Final = {
    "W8A8-INT8": "W8A8", "FP8": "FP8_CHECKPOINT", "MXFP4": "MXFP4A16", "MXFP4-W4A4": "MXFP4",
}  # fmt: skip
"""Stored scheme → recipe scheme; FP8 scale granularity cannot be inferred from the tensors."""
_BASES: Final = {"seen": "observed with", "read": "from the source of", "reported": "reported for"}
_NEWEST: Final = (10**6, 0, 0)
_PACKAGE: Final = re.compile(r"pip install ([A-Za-z0-9_.-]*[A-Za-z0-9])")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")

Version = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table.

    It holds for versions from ``since`` to before ``until`` (empty: no bound) on machines that
    ``machine`` names. ``lever`` is one pattern, or several joined by `` & ``: the first is the
    lever, the others must be set too. ``basis`` says where it was observed (``seen 0.29.0
    cpu-avx512``) or read in the source (``read 0.33``).
    """

    engine: str
    since: str
    until: str
    machine: str
    lever: str
    outcome: str
    says: str
    basis: str

    @property
    def sentence(self) -> str:
        """The explanation with its basis."""
        how, version, *machine = self.basis.split()
        place = f" on {machine[0]}" if machine else ""
        return f"{self.says} ({_BASES[how]} {self.engine} {version}{place})"

    @property
    def package(self) -> str | None:
        """The package that a lever needs, from its ``pip install``; None without one."""
        match = _PACKAGE.search(self.says) if self.outcome == "needs package" else None
        return match[1] if match else None

    def applies(self, engine: str, version: str, machine: Machine) -> bool:
        """Whether the row covers this engine, version and machine."""
        number = version_of(version)
        early = bool(self.since) and number < version_of(self.since)
        late = bool(self.until) and number >= version_of(self.until)
        known = self.engine == engine and not early and not late
        return known and machine_applies(self.machine, machine)


def version_of(text: str) -> Version:
    """(0, 32, 1) of ``0.32.1+cpu``; later than any release without numbers."""
    match = _VERSION.match(text)
    return _numbers(match) if match else _NEWEST


def lever_words(variant: Variant) -> frozenset[str]:
    """Every lever that a variant sets, as a word of the table.

    The names are those of ``whet.levers.labels``; the values are what the engine runs:
    ``weights=W4A16`` (a label has the recipe's name), ``speculation=ngram``, ``prefix_cache``,
    ``lora``, every engine flag and variable with its value. ``speculation.<option>=…`` and
    ``model=`` with the architecture or the dtype (and ``model=mla``) only qualify a row; the model
    is read where the checkpoint is on the disk.
    """
    schemes = variant.recipe_schemes or (_STORED.get(variant.scheme, variant.scheme),)
    words = {f"weights={scheme}" for scheme in schemes}
    speculation = variant.speculation
    if speculation is not None:
        words.add(f"speculation={speculation.method}")
        words |= {f"speculation.{key}={format_value(value)}" for key, value in speculation.options}
    if variant.prefix_cache:
        words.add("prefix_cache")
    if variant.loras:
        words.add("lora")
    words |= {f"{name}={format_value(value)}" for name, value in settings_of(variant)}
    return frozenset(words) | _model_words(Path(variant.model_path))


def lookup(
    resolved: ResolvedEngine, machine: Machine, *, version: str | None = None
) -> tuple[Row, ...]:
    """The row that counts for each lever of a variant, sorted by lever, unknown levers left out.

    ``version`` is the record's own where it is None.
    """
    words = sorted(lever_words(resolved.variant))
    wanted = version or resolved.engine_version
    rows = [
        row
        for row in compatibility_rows(resolved.engine)
        if row.applies(resolved.engine, wanted, machine)
    ]
    chosen = (most_specific(row for row in rows if _matches(row, one, words)) for one in words)
    return tuple(row for row in chosen if row is not None)


def cautions(resolved: ResolvedEngine, machine: Machine | None = None) -> tuple[str, ...]:
    """One sentence per lever that is slow, doubtful or wrong. Default machine: this one."""
    rows = lookup(resolved, machine or find_machine(resolved.device))
    warned = (row for row in rows if row.outcome in WARNINGS - FAULTS)
    warnings = (*warned, *known_faults(resolved))
    return tuple(f"{row.lever}: {row.sentence}" for row in warnings)


def known_faults(resolved: ResolvedEngine) -> tuple[Row, ...]:
    """The rows of a variant whose answers are wrong or doubtful, each text once.

    A more specific row about speed or side effects hides none. They name kinds of machines alone,
    which is what a stored run says.
    """
    words, machine = sorted(lever_words(resolved.variant)), Machine(kind=resolved.device)
    rows = {
        row.says: row
        for row in compatibility_rows(resolved.engine)
        if row.outcome in FAULTS
        and row.applies(resolved.engine, resolved.engine_version, machine)
        and any(_matches(row, one, words) for one in words)
    }
    return tuple(rows.values())


def most_specific(rows: Iterable[Row]) -> Row | None:
    """The row with the narrowest lever, then machine, then the newest basis, then the last."""
    ranked = [(_rank(row), at, row) for at, row in enumerate(rows)]
    return max(ranked, key=lambda item: item[:2])[2] if ranked else None


@cache
def compatibility_rows(engine: str) -> tuple[Row, ...]:
    """The rows of the table in the engine's folder; empty for an engine without one."""
    return tuple(Row(**item) for item in read_table(engine, "compatibility"))


def _matches(row: Row, subject: str, words: Sequence[str]) -> bool:
    first, *others = row.lever.lower().split(_AND)
    return fnmatchcase(subject.lower(), first) and all(
        any(fnmatchcase(each.lower(), part) for each in words) for part in others
    )


def _rank(row: Row) -> tuple[int, bool, int, int, Version]:
    first, *others = row.lever.split(_AND)
    return (
        len(first.replace("*", "")),
        "*" not in first,
        len(others),
        machine_rank(row.machine),
        max((_numbers(match) for match in _VERSION.finditer(row.basis)), default=(0, 0, 0)),
    )


def _numbers(match: re.Match[str]) -> Version:
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _model_words(folder: Path) -> frozenset[str]:
    """``model=…`` of a checkpoint that can be read; what cannot be is refused elsewhere."""
    try:
        outer = read_json(folder / "config.json", infinite=True)
    except (OSError, ValueError):
        return frozenset()
    if not isinstance(outer, dict):
        return frozenset()
    names = outer.get("architectures")
    text = outer.get("text_config")
    config = {**outer, **text} if isinstance(text, dict) else outer
    words = {f"model={name}" for name in names} if isinstance(names, list) else set()
    dtype = config.get("dtype") or config.get("torch_dtype")
    words |= {f"model={dtype}"} if dtype else set()
    return frozenset(words | ({"model=mla"} if config.get("kv_lora_rank") else set()))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMachine:
    """GPUs, their compute capability and the engine's version that will be installed there."""

    device: Device
    capability: tuple[int, int]
    version: str

    @property
    def machine(self) -> Machine:
        """Its kind in the compatibility table."""
        return Machine(kind=self.device.kind, capability=self.capability)

    def needs(self, resolved: Iterable[ResolvedEngine]) -> tuple[str, ...]:
        """The packages beside the engine that these variants need there."""
        rows = (row for item in resolved for row in lookup(item, self.machine))
        return tuple(sorted({row.package for row in rows if row.package is not None}))


def newest_known(engine: str) -> str:
    """The newest version at which a row of the compatibility table starts."""
    return max((row.since for row in compatibility_rows(engine) if row.since), key=version_of)


Status = Literal["available", "slow", "doubtful", "not available here", "not known here"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """``cpu_build`` is True for a build for CPUs; ``packages`` are others that a lever may need."""

    version: str
    cpu_build: bool
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverStatus:
    """One lever on a machine; ``row`` is None where the table does not cover it."""

    lever: str
    status: Status
    row: Row | None


def is_blocked(row: Row, installed: Installed | None) -> bool:
    """Whether this table row blocks the lever on this installation."""
    if row.outcome == "needs package":
        return installed is None or row.package not in installed.packages
    return row.outcome in STOPS


def lever_statuses(engine: str, installed: Installed, machine: Machine) -> tuple[LeverStatus, ...]:
    """The status of every lever of the engine's table, in the table's order."""
    rows = compatibility_rows(engine)
    levers = dict.fromkeys(row.lever for row in rows)
    covering = [row for row in rows if row.applies(engine, installed.version, machine)]
    chosen = {
        lever: most_specific(row for row in covering if row.lever == lever) for lever in levers
    }
    return tuple(
        LeverStatus(lever=lever, status=_status(row, installed), row=row)
        for lever, row in chosen.items()
    )


def _status(row: Row | None, installed: Installed) -> Status:
    if row is None:
        return "not known here"
    if is_blocked(row, installed):
        return "not available here"
    if row.outcome in WARNINGS:
        return "slow" if row.outcome == "works, slow" else "doubtful"
    return "available"
