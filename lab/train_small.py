"""Train a small model on a CPU in minutes, with text to quantize it on and to judge it by.

    python -m lab.train_small chats OUT --copies 3 --seconds 300
    python -m lab.train_small source OUT --seconds 300

It begins with the weights of the demo draft, each layer ``--copies`` times with its share of the
update. ``chats`` are the lab's generated chats, ``source`` the Python files of the standard
library. OUT/model is the checkpoint in bfloat16, OUT/calibration.jsonl text of the training split,
OUT/heldout.jsonl text that was never trained on.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor

from lab.data import Rows, shard_rows
from lab.inputs import write_inputs
from lab.model import Llama, Shape, load_model, save_model
from lab.tokenizer import BOS_ID, END_ID, load_tokenizer, save_tokenizer
from lab.train import CORPUS_SEED, Recipe, train
from whet.demo import pair_paths

_LENGTHS: Final = (256, 448)
_DOCUMENT: Final = 1200
_HELD_OUT: Final = 10
_CHATS: Final = 6000
_UPDATES: Final = ("o_proj.weight", "down_proj.weight")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the text, train the model, write both."""
    options = _options(arguments)
    options.out.mkdir(parents=True)
    start = pair_paths()[1]
    rows = (_chats if options.text == "chats" else _source)(options.out, start)
    shape = Shape.of(start)
    recipe = Recipe(
        name=options.text,
        shape=replace(shape, layers=shape.layers * options.copies),
        steps=options.steps,
        seconds=options.seconds,
        peak_rate=options.rate,
        batch_tokens=options.batch_tokens,
        warmup_steps=20,
        device="cpu",
    )
    log = options.out / "training.csv"
    model = train(recipe, rows, log, repeated(load_model(start), options.copies))
    save_model(model, options.out / "model")
    save_tokenizer(load_tokenizer(start), options.out / "model")
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters")


def repeated(model: Llama, copies: int) -> dict[str, Tensor]:
    """The weights of ``model`` with each layer ``copies`` times, its update divided among them."""
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        layer = re.fullmatch(r"(.*layers\.)(\d+)(\..*)", name)
        share = value / copies if name.endswith(_UPDATES) else value
        for copy in range(copies) if layer else ():
            weights[f"{layer[1]}{int(layer[2]) * copies + copy}{layer[3]}"] = share.clone()
        if layer is None:
            weights[name] = value
    return weights


def _chats(out: Path, start: Path) -> list[Rows]:
    """The lab's chats of up to 448 tokens; calibration and held-out text like the demo run's."""
    write_inputs(out / "inputs", seed=CORPUS_SEED - 1)
    for name in ("calibration.jsonl", "heldout.jsonl"):
        shutil.move(out / "inputs" / name, out / name)
    shutil.rmtree(out / "inputs")
    rows = shard_rows(CORPUS_SEED, _CHATS, start)
    return [each for each in rows if each.ids.shape[1] in _LENGTHS and len(each.ids)]


def _source(out: Path, start: Path) -> list[Rows]:
    """Python files as rows of 256 tokens; every tenth file, by name, is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    heldout = files[::_HELD_OUT]
    training = [file for file in files if file not in heldout]
    _write(out / "heldout.jsonl", _documents(heldout), 256)
    _write(out / "calibration.jsonl", _documents(training), 4096)
    tokenizer = load_tokenizer(start)
    ids = [
        np.array([BOS_ID, *tokenizer.encode(text, add_special_tokens=False).ids, END_ID])
        for text in _documents(training)
    ]
    stream = np.concatenate(ids).astype(np.uint16)
    table = stream[: len(stream) // _LENGTHS[0] * _LENGTHS[0]].reshape(-1, _LENGTHS[0])
    return [Rows(ids=table, weight=np.ones(table.shape, dtype=np.float16))]


def _documents(files: Iterable[Path]) -> Iterator[str]:
    """Pieces of about 1,200 characters, cut at lines."""
    for file in files:
        piece = ""
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            piece += line
            if len(piece) >= _DOCUMENT:
                yield piece
                piece = ""


def _write(path: Path, texts: Iterable[str], limit: int) -> None:
    every = list(texts)
    chosen = islice(every[:: max(1, len(every) // limit)], limit)
    lines = (json.dumps({"text": text}) + "\n" for text in chosen)
    path.write_text("".join(lines), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab.train_small", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("text", choices=("chats", "source"))
    add("out", type=Path, help="new folder")
    add("--copies", type=int, default=1, help="layers for each layer of the demo draft")
    add("--seconds", type=float, default=300)
    add("--steps", type=int, default=100_000)
    add("--rate", type=float, default=2e-3)
    add("--batch-tokens", type=int, default=1024)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
