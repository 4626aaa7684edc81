"""Train a small model from scratch on a CPU in minutes, with text to quantize and to judge it by.

    python -m lab.train_small chats OUT --seconds 480
    python -m lab.train_small source OUT --seconds 480

``chats`` are the lab's generated chats with the demo pair's tokenizer, ``source`` the Python files
of the standard library with a tokenizer trained on them. OUT/model is the checkpoint in bfloat16,
OUT/calibration.jsonl text of the training split, OUT/heldout.jsonl text that was never trained on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from lab.data import Rows, shard_rows
from lab.inputs import write_inputs
from lab.model import Llama, Shape, save_model
from lab.tokenizer import BOS_ID, END_ID, bpe_tokenizer, load_tokenizer, save_tokenizer
from lab.train import CORPUS_SEED, Recipe, train
from whet.demo import pair_paths

_LENGTH: Final = 256
_DOCUMENT: Final = 1200
_HELD_OUT: Final = 10
_CHATS: Final = 4000


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the text, train the model, write both."""
    options = _options(arguments)
    options.out.mkdir(parents=True)
    make = _chats if options.text == "chats" else _source
    rows, tokenizer = make(options.out)
    shape = Shape(
        hidden=options.hidden,
        layers=options.layers,
        heads=options.hidden // 128,
        kv_heads=1,
        mlp=options.mlp,
        vocabulary=tokenizer.get_vocab_size(),
    )
    recipe = Recipe(
        name=options.text,
        shape=shape,
        steps=options.steps,
        seconds=options.seconds,
        peak_rate=options.rate,
        batch_tokens=options.batch_tokens,
        warmup_steps=20,
        device="cpu",
    )
    model = train(recipe, rows, options.out / "training.csv")
    save_model(model, options.out / "model")
    save_tokenizer(tokenizer, options.out / "model")
    print(f"{_count(model):,} parameters, {sum(len(each.ids) for each in rows):,} rows of text")


def _count(model: Llama) -> int:
    return sum(each.numel() for each in model.parameters())


def _chats(out: Path) -> tuple[list[Rows], Tokenizer]:
    """The lab's chats of up to 256 tokens; calibration and held-out text as the demo run's."""
    folder = pair_paths()[0]
    write_inputs(out / "inputs", seed=CORPUS_SEED - 1)
    for name in ("calibration.jsonl", "heldout.jsonl"):
        shutil.move(out / "inputs" / name, out / name)
    shutil.rmtree(out / "inputs")
    rows = shard_rows(CORPUS_SEED, _CHATS, folder)
    return [each for each in rows if each.ids.shape[1] <= _LENGTH], load_tokenizer(folder)


def _source(out: Path) -> tuple[list[Rows], Tokenizer]:
    """Python files as rows of 256 tokens; every tenth file, by name, is held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    heldout = files[::_HELD_OUT]
    training = [file for file in files if file not in heldout]
    _write(out / "heldout.jsonl", _documents(heldout), 256)
    _write(out / "calibration.jsonl", _documents(training), 4096)
    tokenizer = bpe_tokenizer(_documents(training), vocabulary=2048)
    ids = [
        np.array([BOS_ID, *tokenizer.encode(text, add_special_tokens=False).ids, END_ID])
        for text in _documents(training)
    ]
    stream = np.concatenate(ids).astype(np.uint16)
    table = stream[: len(stream) // _LENGTH * _LENGTH].reshape(-1, _LENGTH)
    return [Rows(ids=table, weight=np.ones(table.shape, dtype=np.float16))], tokenizer


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
    add("--hidden", type=int, default=256)
    add("--layers", type=int, default=6)
    add("--mlp", type=int, default=768)
    add("--seconds", type=float, default=480)
    add("--steps", type=int, default=100_000)
    add("--rate", type=float, default=4e-3)
    add("--batch-tokens", type=int, default=2048)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
