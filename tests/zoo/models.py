"""Write folders that look like published models: true configs, names and shapes, no data."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.checkpoint_factory import write_hollow_file, write_json, write_tokenizer
from whet.checkpoint.headers import read_file_headers

_TABLE: Final = Path(__file__).with_name("models.json")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"(\d+)-(\d+)(?:/(\d+))?")
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def names() -> list[str]:
    """Every model that ``write_model`` can write."""
    return list(_models())


def write_model(name: str, folder: Path, *, headers_only: bool = True) -> Path:
    """Write the model ``name`` to ``folder``: config, a tiny tokenizer, one sparse weight file.

    The weights take no room on the disk and read as zeros. With ``headers_only`` the folder is
    marked as one without weights, as of a hub model that is not downloaded: nothing hashes them.
    """
    model = _models()[name]
    folder.mkdir(parents=True, exist_ok=True)
    for file in _TOKENIZER:
        shutil.copy(_tokenizer() / file, folder / file)
    write_json(folder / "config.json", model["config"])
    if "hf_quant_config" in model:
        write_json(folder / "hf_quant_config.json", model["hf_quant_config"])
    weights = folder / "model.safetensors"
    write_hollow_file(weights, tensors(name))
    _write_packed_shapes(weights)
    if headers_only:
        (folder / ".headers-only").touch()
    return folder


def published_config(name: str) -> dict[str, Any]:
    """config.json of the model, with the keys that have an effect."""
    return dict(_models()[name]["config"])


def tensors(name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Safetensors dtype and shape of each tensor by its name."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for line in _models()[name]["tensors"]:
        pattern, *dtype, sizes = line.split(" ")
        shape = () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
        for tensor in _expand(pattern):
            shapes[tensor] = (dtype[0] if dtype else "BF16", shape)
    return shapes


@cache
def _models() -> dict[str, Any]:
    models: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return models


@cache
def _tokenizer() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zoo-tokenizer-"))
    write_tokenizer(folder)
    return folder


def _expand(pattern: str) -> Iterator[str]:
    """``a.{0-2,5}.{x,y}`` → each name; ``{3-47/4}`` is every fourth from 3."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for part in braces[1].split(","):
        span = _RANGE.fullmatch(part)
        values = [part]
        if span is not None:
            values = [str(i) for i in range(int(span[1]), int(span[2]) + 1, int(span[3] or 1))]
        for value in values:
            yield from _expand(pattern[: braces.start()] + value + pattern[braces.end() :])


def _write_packed_shapes(file: Path) -> None:
    """The logical shapes that compressed-tensors stores beside packed 4-bit weights."""
    headers = read_file_headers(file) if b"weight_shape" in file.open("rb").read(2**25) else {}
    with file.open("r+b") as handle:
        for name, header in headers.items():
            if name.endswith(".weight_shape"):
                outputs, words = headers[name.replace("_shape", "_packed")].shape
                handle.seek(header.start)
                width = header.size_bytes // 2
                handle.write(b"".join(n.to_bytes(width, "little") for n in (outputs, 8 * words)))
