"""Options of ``whet ci``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

_FILES = Group.create_ordered("Files to write")
_File = Annotated[Path | None, Parameter(group=_FILES)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class CiOptions:
    """What is compared, and the files that say how it came out."""

    variant: str | None = None
    """Variant to compare. Default: the one that the baseline run recommends."""
    max_regression: Annotated[float, Parameter(validator=Number(gt=0, lt=1))] = 0.07
    """Share by which the cost of the primary cell may be above the baseline's."""
    junit: _File = None
    """JUnit XML: one test case a check."""
    markdown: _File = None
    """Summary for a pull request."""
