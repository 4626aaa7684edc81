"""`dataclasses.replace` that also copies a run with other values."""

from __future__ import annotations

import dataclasses
from copy import copy
from typing import Any

from whet.core.run import Run


def replace(item: Any, **changes: Any) -> Any:
    """A copy of a record or of a run; a run's other values are those that it had read."""
    if not isinstance(item, Run):
        return dataclasses.replace(item, **changes)
    unknown = [name for name in changes if not hasattr(Run, name)]
    assert not unknown, f"a run has no {unknown}"
    copied = copy(item)
    vars(copied).update(changes)
    return copied
