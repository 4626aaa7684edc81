"""A random-weight Llama of a real model's shape, and calibration text for it, in seconds.

    python -m lab.shapes 7b OUT [--layers N] [--vocab N] [--device cuda]

It costs what a model of that shape costs to quantize and says nothing about quality. OUT/model is
the checkpoint (bf16, sharded, the demo's tokenizer), OUT/calibration.jsonl the text.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tests.checkpoint_factory import llama_shapes
from torch import Tensor

from lab.inputs import write_inputs
from lab.sizes import Sizes, find_sizes
from whet.core.units import GIB
from whet.demo import pair_paths

_SPREAD: Final = 0.02
_VOCAB: Final = 4096
_BESIDE: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
_OUTLIERS: Final = 8
_OUTLIER_GAIN: Final = (8.0, 32.0)
_CHARS_PER_TOKEN: Final = 8
"""More than the demo tokenizer's longest usual token, so that a text fills its sample."""


_CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SHAPES: Final = {
    "7b": replace(find_sizes("7b"), tied=False),
    "70b": replace(find_sizes("8192,80,64,8,28672"), tied=False),
    "tiny": replace(find_sizes("256,2,2,1,512"), tied=False),
}
"""``7b`` is Llama-3-8B's decoder, ``70b`` Llama-3-70B's; ``tiny`` tries the script out."""


def write_model(shape: Sizes, out: Path, device: torch.device, *, seed: int = 0) -> int:
    """Write a checkpoint of ``shape`` into the new folder ``out``, one shard a layer.

    Linears are drawn from N(0, 0.02²). A few channels of every norm have gains of 8 to 32, as
    trained models have them, so that scales have something to find. Returns the bytes of weights.
    """
    out.mkdir(parents=True)
    generator = torch.Generator(device=device).manual_seed(seed)
    shards = shard_shapes(shape)
    weight_map: dict[str, str] = {}
    total = 0
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: _draw(size, generator) for name, size in names.items()}
        save_file(tensors, out / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(out / "model.safetensors.index.json", index_file)
    _write_json(out / "config.json", _CONFIG | shape.config())
    for name in _BESIDE:
        shutil.copy(pair_paths()[0] / name, out / name)
    return total


def shard_shapes(shape: Sizes) -> list[dict[str, tuple[int, ...]]]:
    """Tensor names and shapes, a dictionary for each file: the layers, then what is around them."""
    shards: list[dict[str, tuple[int, ...]]] = [{} for _ in range(shape.layers + 1)]
    for name, size in llama_shapes(_CONFIG | shape.config()).items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        shards[int(layer[1]) if layer else -1][name] = size
    return shards


def _draw(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """One tensor, drawn where the generator lives, in bf16 on the host."""
    device = generator.device
    if len(size) > 1:
        drawn = torch.empty(size, dtype=torch.bfloat16, device=device)
        return drawn.normal_(0, _SPREAD, generator=generator).cpu()
    gains = torch.rand(size, generator=generator, device=device) * 0.2 + 0.9
    where = torch.randperm(size[0], generator=generator, device=device)[:_OUTLIERS]
    low, high = _OUTLIER_GAIN
    gains[where] = low + (high - low) * torch.rand(len(where), generator=generator, device=device)
    return gains.to(torch.bfloat16).cpu()


def write_calibration(file: Path, *, samples: int, max_tokens: int) -> None:
    """``samples`` JSONL rows of demo text, each long enough to be cut to exactly ``max_tokens``."""
    wanted = max_tokens * _CHARS_PER_TOKEN
    text = _demo_text(file.parent / "inputs")
    with file.open("w", encoding="utf-8") as stream:
        for _ in range(samples):
            row = ""
            while len(row) < wanted:
                row += next(text) + "\n\n"
            stream.write(json.dumps({"text": row}, ensure_ascii=False) + "\n")


def _demo_text(folder: Path) -> Iterator[str]:
    """Chats of the demo's training split, one set of 512 after the other."""
    for seed in itertools.count():
        write_inputs(folder, seed=seed)
        lines = (folder / "calibration.jsonl").read_text(encoding="utf-8").splitlines()
        shutil.rmtree(folder)
        for line in lines:
            yield "\n".join(message["content"] for message in json.loads(line)["messages"])


def _write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the model and the text, and say how long it took."""
    options = _options(arguments)
    changes = {name: getattr(options, name) for name in ("layers", "vocabulary")}
    shape = replace(
        SHAPES[options.shape], **{name: value for name, value in changes.items() if value}
    )
    started = time.monotonic()
    total = write_model(shape, options.out / "model", torch.device(options.device))
    middle = time.monotonic()
    write_calibration(
        options.out / "calibration.jsonl", samples=options.samples, max_tokens=options.max_tokens
    )
    print(
        f"shapes: {options.shape} with {shape.layers} layers, {total / GIB:.1f} GiB in "
        f"{middle - started:.0f} s; calibration text in {time.monotonic() - middle:.0f} s"
    )
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab.shapes", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("shape", choices=SHAPES)
    add("out", type=Path, help="new folder for model/ and calibration.jsonl")
    add("--layers", type=int, help="fewer or more than the real model has")
    add(
        "--vocab",
        dest="vocabulary",
        type=int,
        help=f"entries of the embedding (default, and least: {_VOCAB})",
    )
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--samples", type=int, default=512)
    add("--max-tokens", type=int, default=512)
    options = parser.parse_args(arguments)
    if options.vocabulary is not None and options.vocabulary < _VOCAB:
        parser.error(
            f"--vocab {options.vocabulary} is less than the tokenizer's {_VOCAB}; raise it"
        )
    if (options.out / "model").exists():
        parser.error(f"{options.out / 'model'} exists; name a new folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
