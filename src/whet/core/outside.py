"""Read what comes from outside: files and JSON, bounded in size and depth."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from whet.core.units import GIB, MIB, human_bytes

DEEPEST: Final = 100
"""Levels of brackets: a record has at most a dozen, and what is deeper ends in a recursion."""
LARGEST_FILE: Final = 8 * GIB
LARGEST_STREAM: Final = 512 * MIB
"""Of a pipe or a device, which may have no end."""
MOST_VALUES: Final = 100_000
_AT_ONCE: Final = os.O_NONBLOCK | os.O_NOCTTY
_BOM: Final = "\ufeff"
_TOO_DEEP: Final = "it is nested too deeply"


def json_value(
    text: str | bytes,
    *,
    whole: Callable[[str], Any] | None = None,
    real: Callable[[str], Any] | None = None,
) -> Any:
    """Return the JSON value in ``text``; ``whole`` and ``real`` make its numbers.

    A byte-order mark is skipped. Raises ``ValueError`` for anything but JSON, and for brackets
    that nest deeper than ``DEEPEST``.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        value = json.loads(
            text.removeprefix(_BOM), parse_int=whole, parse_float=real, parse_constant=real
        )
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [value]
    for _ in range(DEEPEST):
        within = (each for each in level if isinstance(each, dict | list))
        level = [x for each in within for x in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def yaml_values(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> list[Any]:
    """Return the documents of a YAML text.

    Raises ``yaml.YAMLError`` for anything else, and for more than ``MOST_VALUES`` values: aliases
    make many of few, or a value that holds itself.
    """
    try:
        documents = list(yaml.load_all(text, loader))
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
    except (ValueError, TypeError, AttributeError) as error:  # a date, a number or a tag
        raise yaml.YAMLError(str(error)) from error
    waiting, count = [*documents], 0
    while waiting:
        item, count = waiting.pop(), count + 1
        if count > MOST_VALUES:
            raise yaml.YAMLError(f"it has more than {MOST_VALUES:,} values")
        if isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item
    return documents


def yaml_value(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Return the one document of a YAML text, None where it is empty; raises as ``yaml_values``."""
    documents = yaml_values(text, loader) or [None]
    if len(documents) > 1:
        raise yaml.YAMLError(f"it holds {len(documents)} documents, separated by ---")
    return documents[0]


def read_bytes(path: Path, *, regular: bool = False) -> bytes:
    """Return what a file, a pipe or a device holds.

    A FIFO that nothing writes to is empty. Raises ``OSError`` where it cannot be read, and
    ``ValueError`` where it is larger, or not a regular file where that is asked for.
    """
    with open(path, "rb", opener=lambda name, how: os.open(name, how | _AT_ONCE)) as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        if regular and not is_regular:
            raise ValueError(f"{path} is not a regular file")
        most = LARGEST_FILE if is_regular else LARGEST_STREAM
        os.set_blocking(file.fileno(), True)
        pieces, size = [], 0
        while piece := file.read(MIB):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise ValueError(f"{path} is larger than {human_bytes(most)}")
    return b"".join(pieces)


def read_text(path: Path, *, regular: bool = False, errors: str = "strict") -> str:
    """Return the text of a file, its line ends as ``\\n``; raises as ``read_bytes``."""
    text = read_bytes(path, regular=regular).decode("utf-8", errors).removeprefix(_BOM)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_lines(data: bytes) -> Iterator[Any]:
    """Yield the JSON value of each line; a line that a kill tore is left out."""
    for line in data.split(b"\n"):
        with suppress(ValueError):
            yield json_value(line)


def read_json(path: Path, *, infinite: bool = False) -> Any:
    """Return the JSON value in a regular file; ``infinite`` lets Infinity pass.

    Raises as ``read_bytes`` and ``json_value``, and ``ValueError`` for a number that is not finite.
    """
    return json_value(read_bytes(path, regular=True), real=_not_nan if infinite else finite)


def finite(written: str) -> float:
    """Return the number that a text is; ``ValueError`` where it is not finite."""
    if not math.isfinite(value := _not_nan(written)):
        raise ValueError(f"{written} is not a finite number")
    return value


def _not_nan(written: str) -> float:
    value = float(written)
    if math.isnan(value):
        raise ValueError(f"{written} is not a finite number")
    return value
