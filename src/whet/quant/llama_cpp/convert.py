"""A Llama checkpoint as a 16-bit GGUF file, tensor by tensor.

llama.cpp's converter knows tokenizers by a hash of what they make of one text and refuses all
others; here the tokenizer's own pre-tokenizer says which it is. Other architectures are left to
that converter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from whet.checkpoint.config import read_shape
from whet.checkpoint.files import read_json
from whet.checkpoint.gguf_file import import_gguf
from whet.checkpoint.headers import read_headers
from whet.core.errors import QuantizationError
from whet.quant.llama_cpp.vocabulary import add_vocabulary, tokenizer_problem

Array = npt.NDArray[Any]
_NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_IN_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")
_ROTATED: Final = ("attn_q", "attn_k")
_OTHER: Final = (
    "write the GGUF file with llama.cpp's convert_hf_to_gguf.py and llama-quantize, and serve it "
    "with weights: ./file.gguf"
)


def conversion_problem(folder: Path) -> str | None:
    """Why whet cannot write the checkpoint as GGUF, with what can; None if it can."""
    config = read_json(folder / "config.json")
    if config.get("architectures") != ["LlamaForCausalLM"]:
        kind = ", ".join(config.get("architectures") or ["no architecture"])
        return f"whet writes GGUF files of LlamaForCausalLM, and this is {kind}; {_OTHER}"
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return f"whet writes no GGUF file of a model with scaled RoPE; {_OTHER}"
    unknown = next((name for name in read_headers(folder) if gguf_name(name) is None), None)
    if unknown is not None:
        return f"whet has no GGUF name for the tensor {unknown}; {_OTHER}"
    problem = tokenizer_problem(folder)
    return None if problem is None else f"{problem}; {_OTHER}"


def gguf_name(name: str) -> str | None:
    """The GGUF name of a tensor of a Llama checkpoint; None for any other."""
    module, _, part = name.rpartition(".")
    if part != "weight":
        return None
    if match := _LAYER.fullmatch(module):
        inside = _IN_LAYER.get(match[2])
        return None if inside is None else f"blk.{match[1]}.{inside}.weight"
    whole = _NAMES.get(module)
    return None if whole is None else f"{whole}.weight"


def write_gguf(folder: Path, out: Path, *, progress: Callable[[int, int], None]) -> None:
    """Write the checkpoint in ``folder`` to the file ``out``, matrices in the dtype they have.

    Raises ``QuantizationError`` where it cannot be written.
    """
    from whet.quant.tensor_reader import TensorReader

    problem = conversion_problem(folder)
    if problem is not None:
        raise QuantizationError(problem)
    gguf, reader = import_gguf(), TensorReader(folder)
    tied = read_json(folder / "config.json").get("tie_word_embeddings") is True
    names = [name for name in reader.headers if not (tied and name == "lm_head.weight")]
    writer = gguf.GGUFWriter(out, "llama")
    _add_shape(writer, folder)
    for name in names:
        shape, dtype = reader.headers[name].shape, _stored_dtype(reader.headers[name].dtype, name)
        kind, size = gguf.GGMLQuantizationType[dtype], 4 if dtype == "F32" else 2
        count = int(np.prod(shape))
        writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), count * size, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    heads = _heads(folder)
    for number, name in enumerate(names):
        progress(number, len(names))
        writer.write_tensor_data(_array(reader, name, heads))
    writer.close()


def _add_shape(writer: Any, folder: Path) -> None:
    shape, config = read_shape(folder), read_json(folder / "config.json")
    rope = config.get("rope_parameters") or {}
    writer.add_name(folder.name)
    writer.add_context_length(shape.max_position)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(float(config.get("rope_theta", rope.get("rope_theta", 10_000.0))))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(shape.vocab_size)
    add_vocabulary(writer, folder, size=shape.vocab_size)


def _stored_dtype(dtype: str, name: str) -> str:
    """Norms are stored in 32 bits, as llama.cpp computes them."""
    return "F32" if "norm" in name or dtype not in ("F16", "BF16") else dtype


def _heads(folder: Path) -> dict[str, int]:
    shape = read_shape(folder)
    return {"attn_q": shape.heads, "attn_k": shape.kv_heads}


def _array(reader: Any, name: str, heads: dict[str, int]) -> Array:
    """The tensor's bytes as they are stored; q and k in llama.cpp's order of rotated channels."""
    import torch

    tensor = reader.read(name)
    inside = str(gguf_name(name)).split(".")[-2]
    if inside in _ROTATED:
        tensor = _interleaved(tensor, heads[inside])
    if _stored_dtype(reader.headers[name].dtype, name) == "F32":
        return np.asarray(tensor.float().numpy())
    return np.asarray(tensor.contiguous().view(torch.int16).numpy())


def _interleaved(tensor: Any, heads: int) -> Any:
    """Rows [O, K] from halves that rotate together to pairs: llama.cpp rotates neighbours."""
    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)
