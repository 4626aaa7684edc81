"""The report of a run: every module here is a section.

A section module has ``ORDER``, an integer that places it, and ``build(run)``, which returns a
``Section``, or None where the run has nothing to show. Adding a section is adding a file.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType

from whet.core.format import plural
from whet.core.run import Run
from whet.report.document import Document, Section
from whet.report.text import format_time


@cache
def section_modules() -> tuple[ModuleType, ...]:
    """Every section of this folder, in the order of the report."""
    names = (f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
    modules = (module for name in names if hasattr(module := import_module(name), "ORDER"))
    return tuple(sorted(modules, key=lambda module: int(module.ORDER)))


def run_document(run: Run) -> Document:
    """The whole report of a run, finished or interrupted."""
    facts = []
    if run.environment is not None:
        facts += [run.environment.device.name, format_time(run.environment.started_at)]
    facts.append(f"{plural(len(run.variants), 'variant')}, {plural(len(run.cells), 'cell')}")
    return Document(
        title=run.name,
        facts=facts,
        tags=[("incomplete", "warn") if run.missing else ("complete", "good")],
        sections=list(_sections(run)),
    )


def _sections(run: Run) -> Iterator[Section]:
    for module in section_modules():
        if (section := module.build(run)) is not None:
            yield section
