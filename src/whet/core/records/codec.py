"""Records to JSON and back; a missing or unfit field is an error."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from whet.core.errors import StorageError

T = TypeVar("T")

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """Built once a class: building one costs more than using it."""
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def encode(record: object) -> Any:
    """A record as plain JSON values (dicts, lists, numbers, strings, None)."""
    return _adapter(type(record)).dump_python(record, mode="json")


def decode(cls: type[T], data: object) -> T:
    """The record of class ``cls`` that ``encode`` made ``data`` from.

    Raises ``StorageError`` where ``data`` does not fit, naming the first field that does not.
    """
    try:
        value: T = _adapter(cls).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole record"
        raise StorageError(
            f"a stored {cls.__name__} cannot be read ({where}: {first['msg']})",
            fix="it was written by another version of whet: start a new run",
        ) from error
    return value
