"""The model of a running server that a command is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from whet.client import Endpoint, HttpError, get_json
from whet.core.errors import MeasurementError, UsageError

_UNAUTHORIZED: Final = 401
_NO_LIST: Final = frozenset({403, 404, 405, 410, 501})
_LISTED: Final = 20


def model_entry(url: str, model: str | None, flag: str = "--model") -> dict[str, Any]:
    """Return the entry of ``/v1/models`` for ``model``, or the only one.

    ``flag`` is the option that names the model, which a server without a list is taken to have.
    Raises ``UsageError`` for a model not listed, ``MeasurementError`` for no list; as ``get_text``.
    """
    page = Endpoint.parse(url).url_of("/v1/models")
    try:
        answer = get_json(url, "/v1/models")
        entries = [item for item in answer["data"] if isinstance(item, dict) and "id" in item]
    except HttpError as error:
        if error.status == _UNAUTHORIZED:
            raise UsageError(
                f"{url} refuses the key (401)", fix="put the right one into OPENAI_API_KEY"
            ) from error
        if model is not None and error.status in _NO_LIST:
            return {"id": model}
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(
            f"{page} is not a list of models", fix="check that the server is OpenAI-compatible"
        ) from error
    names = ", ".join(str(item["id"]) for item in entries[:_LISTED])
    if not entries:
        raise UsageError(f"{page} lists no model", fix="load a model into the server first")
    if model is None and len(entries) == 1:
        return entries[0]
    if model is None:
        raise UsageError(
            f"the server has {len(entries)} models", fix=f"choose one with {flag}: {names}"
        )
    for item in entries:
        if item["id"] == model:
            return item
    raise UsageError(f"the server has no model {model!r}", fix=f"{flag} takes one of {names}")


def tokenizer_here(entry: Mapping[str, Any]) -> Path | None:
    """The folder of the model that an entry states, if it is on this machine."""
    root = entry.get("root")
    here = isinstance(root, str) and (Path(root) / "tokenizer.json").is_file()
    return Path(str(root)) if here else None
