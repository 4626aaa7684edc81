"""A document as plain JSON values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from whet.core.redact import clean
from whet.report.document import Chart, Document


def document_json(document: Document) -> dict[str, Any]:
    """Title, facts and sections; each node names its ``kind``. Charts are Vega-Lite."""
    return {
        "title": clean(document.title),
        "facts": [clean(fact) for fact in document.facts],
        "sections": [
            {
                "id": section.id,
                "title": clean(section.title),
                "nodes": [_plain(node) for node in section.nodes],
            }
            for section in document.sections
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Chart):
        own = {"kind": "Chart", "name": value.name, "title": clean(value.title)}
        return own | {"description": clean(value.description), "vega_lite": value.picture()}
    if is_dataclass(value):
        own = {"kind": type(value).__name__}
        return own | {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
