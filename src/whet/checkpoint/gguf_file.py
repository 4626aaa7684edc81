"""A GGUF file → ``ModelFacts``, from its own tensors and the config.json of the model in it.

The file is whole in itself; config.json and the tokenizer say which model it must be of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.config import ModelShape, read_shape
from whet.checkpoint.headers import TensorHeader, hash_weights
from whet.checkpoint.tokenizer import read_vocabulary, tokenizer_identity
from whet.core.errors import CheckpointError, UsageError
from whet.core.records.model import ModelFacts, StoredWeights

SUFFIX: Final = ".gguf"
_MAGIC: Final = b"GGUF"
_MATRIX: Final = 2
_IN_LAYER: Final = re.compile(r"blk\.\d+\..*weight")
_PLAIN: Final = {"F32": "32bit", "F16": "16bit", "BF16": "16bit"}
_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_GIVE: Final = "give a GGUF file of this target"


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """Tensors and their numbers of weights by name, and the values of the metadata by key."""

    tensors: Mapping[str, TensorHeader]
    parameters: Mapping[str, int]
    metadata: Mapping[str, Any]

    @property
    def linears(self) -> list[TensorHeader]:
        """The matrices of the decoder's layers."""
        return [
            each
            for name, each in self.tensors.items()
            if _IN_LAYER.fullmatch(name) and len(each.shape) >= _MATRIX
        ]


def import_gguf() -> Any:
    """The ``gguf`` package; ``UsageError`` with what installs it."""
    try:
        import gguf
    except ImportError as error:
        raise UsageError(
            "GGUF files are read with the package gguf",
            fix="install it: pip install 'whet[llamacpp]'",
        ) from error
    return gguf


def gguf_facts(file: Path, *, model: Path) -> ModelFacts:
    """Return the facts of a GGUF file that holds the model of ``model``.

    ``model`` is a folder with config.json and tokenizer.json. Raises ``CheckpointError`` for a
    damaged file, and where its layers, widths or vocabulary are another model's.
    """
    header = read_gguf(file)
    shape, stored = read_shape(model), _stored(file, header)
    _require_shape(file, header, shape)
    _require_vocabulary(file, header, model)
    identity = tokenizer_identity(model)
    tied = "output.weight" not in header.tensors
    return shape.facts(
        file,
        parameters=sum(header.parameters.values()),
        weight_bytes=sum(each.size_bytes for each in header.tensors.values()),
        tied_embeddings=tied,
        stored=stored,
        tokenizer=identity,
        weights_sha256=hash_weights(header.tensors),
        linear_parameters=sum(header.parameters[each.name] for each in header.linears),
        linear_inputs=tuple(sorted({each.shape[-1] for each in header.linears})),
    )


def read_gguf(file: Path) -> GgufHeader:
    """The header; ``CheckpointError`` where the file is not GGUF or not whole."""
    with file.open("rb") as handle:
        if handle.read(len(_MAGIC)) != _MAGIC:
            raise CheckpointError(f"{file} is not a GGUF file", fix="download or write it again")
    gguf = import_gguf()
    try:
        reader = gguf.GGUFReader(file)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {each.name: _header(file, each) for each in reader.tensors}
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise CheckpointError(
            f"{file} is not a whole GGUF file ({error})", fix="download or write it again"
        ) from error
    parameters = {  # a converter adds the factors of scaled RoPE as tensors
        each.name: int(each.n_elements)
        for each in reader.tensors
        if not each.name.startswith("rope_")
    }
    return GgufHeader(tensors=tensors, parameters=parameters, metadata=metadata)


def _header(file: Path, tensor: Any) -> TensorHeader:
    """Its shape has the input width K last, as in safetensors."""
    return TensorHeader(
        name=str(tensor.name),
        dtype=str(tensor.tensor_type.name),
        shape=tuple(int(size) for size in reversed(tensor.shape)),
        file=file,
        start=int(tensor.data_offset),
        end=int(tensor.data_offset + tensor.n_bytes),
    )


def _stored(file: Path, header: GgufHeader) -> StoredWeights:
    """The scheme is the file's own name for its mix of types, or that of plain floats."""
    linears = header.linears
    if not linears:
        raise CheckpointError(f"{file} has no layers", fix=_GIVE)
    plain = [each for each in linears if each.dtype in _PLAIN]
    schemes = {_PLAIN.get(each.dtype) for each in linears}
    weights = sum(header.parameters[each.name] for each in linears)
    one = schemes.pop() if len(schemes) == 1 else None
    return StoredWeights(
        scheme=one or _mix(file, header),
        dtype=_DTYPES.get(linears[0].dtype, "float16"),
        group_size=None,
        bits_per_weight=8 * sum(each.size_bytes for each in linears) / weights,
        quantized_modules=len(linears) - len(plain),
        unquantized_modules=len(plain),
    )


def _mix(file: Path, header: GgufHeader) -> str:
    """llama.cpp's name of the mix: ``Q4_K_M``."""
    gguf = import_gguf()
    number = header.metadata.get("general.file_type")
    try:
        name = str(gguf.LlamaFileType(number).name)
    except ValueError as error:
        raise CheckpointError(
            f"{file} does not say which quantization it has (general.file_type is {number})",
            fix="write it again with llama-quantize",
        ) from error
    return name.removeprefix("MOSTLY_")


def _require_shape(file: Path, header: GgufHeader, shape: ModelShape) -> None:
    kind = header.metadata.get("general.architecture")
    for key, wanted in (
        ("block_count", shape.layers),
        ("embedding_length", shape.hidden_size),
        ("attention.head_count", shape.heads),
    ):
        own = header.metadata.get(f"{kind}.{key}")
        if own is not None and own != wanted:
            raise CheckpointError(
                f"{file} holds another model: {key} is {own}, and the target has {wanted}",
                fix=_GIVE,
            )


def _require_vocabulary(file: Path, header: GgufHeader, model: Path) -> None:
    """Every id must be the same token: prompts are sent as ids."""
    own = list(header.metadata.get("tokenizer.ggml.tokens") or ())
    for token, number in read_vocabulary(model).ids.items():
        theirs = own[number] if number < len(own) else None
        if theirs != token:
            raise CheckpointError(
                f"{file} has another vocabulary: id {number} is {theirs!r}, and {token!r} in the "
                f"target's tokenizer",
                fix=_GIVE,
            )
