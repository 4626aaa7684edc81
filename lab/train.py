"""Train the demo pair from scratch on one GPU; write both checkpoints and the training figures.

python -m lab.train --out build/pair --tokenizer src/whet/demo/pair/target
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lab.data import Rows, make_rows
from lab.model import DRAFT, TARGET, Llama, Shape, save_model
from lab.tokenizer import PAD_ID, load_tokenizer, save_tokenizer

CORPUS_SEED = 1000
"""Seeds from here on are training shards; the demo run's inputs use small seeds."""


Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How one model is trained. It ends at ``steps`` or ``seconds``, whichever comes first."""

    name: str
    shape: Shape
    steps: int
    seconds: float
    peak_rate: float
    batch_tokens: int = 65536
    warmup_steps: int = 300
    device: str = "cuda"


def train(recipe: Recipe, data: list[Rows], log: Path, start: Weights | None = None) -> Llama:
    """Cosine-scheduled AdamW over shuffled batches; a line of ``log`` every 100 steps.

    ``start`` are the weights to begin with, random ones by default.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    on_gpu = recipe.device == "cuda"
    model = Llama(recipe.shape).to(recipe.device)
    if start is not None:
        model.load_state_dict(start)
    step_loss = torch.compile(_loss_of(model), dynamic=False, disable=not on_gpu)
    decayed = [value for value in model.parameters() if value.dim() > 1]
    plain = [value for value in model.parameters() if value.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.95), fused=on_gpu)
    batches = Batches(data, recipe.batch_tokens, recipe.device)
    figures: list[dict[str, float]] = []
    for place in range(len(data)):
        torch.autograd.backward(step_loss(*batches.first(place)))
    _wait(recipe.device)
    began, step, done = time.monotonic(), 0, 0.0
    while done < 1.0:
        loss = step_loss(*batches.next())
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak_rate * _schedule(step, recipe.warmup_steps, done)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            _wait(recipe.device)
        spent = time.monotonic() - began
        done = max(step / recipe.steps, spent / recipe.seconds)
        if step % 100 == 0 or done >= 1.0:
            figures.append({"step": step, "seconds": round(spent, 2), "loss": float(loss.detach())})
            if step % 500 == 0 or done >= 1.0:
                print(recipe.name, figures[-1], flush=True)
    _write_log(log, figures, recipe.batch_tokens)
    return model.eval()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _loss_of(model: Llama) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(ids: Tensor, weight: Tensor) -> Tensor:
        # Without bf16 instructions a CPU is slower in bf16.
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=ids.is_cuda):
            logits = model(ids)
        goal = torch.roll(ids, -1, dims=1).flatten()
        each = functional.cross_entropy(logits.float().flatten(0, 1), goal, reduction="none")
        counts = torch.cat((weight[:, 1:], torch.zeros_like(weight[:, :1])), 1).float().flatten()
        return (each * counts).sum() / counts.sum()

    return loss


class Batches:
    """Batches of one bucket each, in an order drawn from a fixed seed, again and again."""

    def __init__(self, data: list[Rows], tokens: int, device: str) -> None:
        self._device = device
        self._ids = [torch.from_numpy(rows.ids.astype("int32")).to(device) for rows in data]
        self._weights = [torch.from_numpy(rows.weight).to(device) for rows in data]
        self._sizes = [tokens // rows.ids.shape[1] for rows in data]
        self._random = random.Random(0)
        self._queue: list[tuple[int, Tensor]] = []

    def first(self, place: int) -> tuple[Tensor, Tensor]:
        """A batch of one bucket, to compile on."""
        return self._rows(place, torch.arange(self._sizes[place], device=self._device))

    def next(self) -> tuple[Tensor, Tensor]:
        """Ids [B, T] and weights [B, T]."""
        if not self._queue:
            for place, (ids, size) in enumerate(zip(self._ids, self._sizes, strict=True)):
                order = torch.randperm(len(ids), device=self._device)
                whole = len(ids) // size * size
                self._queue += [(place, rows) for rows in order[:whole].view(-1, size)]
            self._random.shuffle(self._queue)
        return self._rows(*self._queue.pop())

    def _rows(self, place: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._ids[place][rows].long(), self._weights[place][rows]


def _schedule(step: int, warmup: int, done: float) -> float:
    return min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def _write_log(path: Path, figures: list[dict[str, float]], tokens_a_step: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "tokens", "seconds", "loss"])
        for line in figures:
            tokens = int(line["step"]) * tokens_a_step
            writer.writerow([int(line["step"]), tokens, line["seconds"], f"{line['loss']:.4f}"])


def main() -> None:
    """Generate, train both models, write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=128)
    parser.add_argument("--chats", type=int, default=2300)
    parser.add_argument("--target-steps", type=int, default=12650)
    parser.add_argument("--target-seconds", type=float, default=600)
    parser.add_argument("--draft-steps", type=int, default=2500)
    parser.add_argument("--draft-seconds", type=float, default=60)
    chosen = parser.parse_args()
    began = time.monotonic()
    workers = os.cpu_count() or 1
    data = make_rows(CORPUS_SEED, chosen.shards, chosen.chats, chosen.tokenizer, workers)
    for rows in data:
        filled = int((rows.ids != PAD_ID).sum())
        print(f"rows {rows.ids.shape}, {filled:,} tokens, {filled / rows.ids.size:.3f} filled")
    print(f"made in {time.monotonic() - began:.1f} s")
    recipes = (
        Recipe(
            name="draft",
            shape=DRAFT,
            steps=chosen.draft_steps,
            seconds=chosen.draft_seconds,
            peak_rate=3e-3,
        ),
        Recipe(
            name="target",
            shape=TARGET,
            steps=chosen.target_steps,
            seconds=chosen.target_seconds,
            peak_rate=2e-3,
        ),
    )
    tokenizer = load_tokenizer(chosen.tokenizer)
    for recipe in recipes:
        folder = chosen.out / recipe.name
        folder.mkdir(parents=True, exist_ok=True)
        save_model(train(recipe, data, chosen.out / f"{recipe.name}.csv"), folder)
        save_tokenizer(tokenizer, folder)


if __name__ == "__main__":
    main()
