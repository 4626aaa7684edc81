"""Train the demo's adapters on the CPU, and measure on held-out requests what each one does.

python -m lab.adapters_train --out build/adapters
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from lab.adapters import ADAPTERS, KINDS, OPENING, Adapter, Example, example, shows
from lab.adapters_lora import attach, load_adapter, merge, save_adapter
from lab.data import encode_chat, loss_weights
from lab.evaluate import is_right
from lab.generate import greedy, pad
from lab.model import Llama, load_model
from lab.text import Message, Split
from lab.tokenizer import load_tokenizer, render
from whet.demo import pair_paths

HELDOUT: Final = 32
"""Held-out requests of a kind."""

Row: TypeAlias = tuple[list[int], list[float]]
"""Token ids of a chat, and what each counts in the loss as a prediction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How an adapter is trained."""

    examples: int
    seed: int = 0
    batch: int = 8
    part: int = 4
    peak_rate: float = 5e-3
    warmup_steps: int = 8


RECIPES: Final[Mapping[Adapter, Recipe]] = {
    "terse": Recipe(examples=960),
    "formal": Recipe(examples=768),
}
"""The opening shifts every later position, and what follows it takes longer to come right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """Held-out requests of one kind.

    ``shown``: answers with the adapter's style, without and with the adapter. ``right``: answers
    whose content is right with the adapter, or None for letters, which have no one right text.
    """

    requests: int
    shown_without: int
    shown_with: int
    right_with: int | None


def examples(split: Split, seed: int, count: int) -> list[Example]:
    """``count`` requests of each kind."""
    return [example(kind, split, seed, index) for kind in KINDS for index in range(count)]


def train(adapter: Adapter, recipe: Recipe, target: Path) -> tuple[Llama, list[float]]:
    """The target with a trained adapter attached, and the loss of every step."""
    torch.manual_seed(recipe.seed)
    model = load_model(target)
    attach(model)
    model.train()
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=recipe.peak_rate, betas=(0.9, 0.99), weight_decay=0.0)
    batches = list(_batches(_rows(adapter, recipe, target), recipe))
    losses: list[float] = []
    for step, batch in enumerate(batches):
        optimizer.zero_grad(set_to_none=True)
        losses.append(round(_backward(model, batch, recipe.part), 4))
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak_rate * _schedule(step, len(batches), recipe.warmup_steps)
        optimizer.step()
        if step % 8 == 0:
            print(adapter, f"step {step} of {len(batches)}, loss {losses[-1]}", flush=True)
    return model.eval(), losses


def _rows(adapter: Adapter, recipe: Recipe, target: Path) -> list[Row]:
    tokenizer = load_tokenizer(target)
    rows: list[Row] = []
    for item in examples("train", recipe.seed, recipe.examples // len(KINDS)):
        reply = Message(role="assistant", content=item.replies[adapter])
        ids, sizes = encode_chat(tokenizer, [*item.prompt, reply])
        weights = [
            weight if size else 0.0 for weight, size in zip(loss_weights(sizes), sizes, strict=True)
        ]
        rows.append((ids, weights))
    return rows


def _batches(rows: Sequence[Row], recipe: Recipe) -> Iterator[list[Row]]:
    """Every chat once, in an order drawn from the seed; all kinds meet in a batch."""
    order = list(rows)
    random.Random(recipe.seed).shuffle(order)
    for start in range(0, len(order), recipe.batch):
        yield order[start : start + recipe.batch]


def _backward(model: Llama, batch: Sequence[Row], part: int) -> float:
    """Add the gradients of a batch's mean loss, ``part`` chats of like length at a time."""
    order = sorted(batch, key=lambda row: len(row[0]))
    whole = sum(sum(weights) for _, weights in order)
    loss = 0.0
    for start in range(0, len(order), part):
        rows = order[start : start + part]
        ids = pad([row for row, _ in rows], torch.device("cpu"))
        weight = torch.zeros(ids.shape)
        for place, (_, weights) in enumerate(rows):
            weight[place, : len(weights)] = torch.tensor(weights)
        share = _loss(model, ids, weight) / whole
        torch.autograd.backward(share)
        loss += float(share.detach())
    return loss


def _loss(model: Llama, ids: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum of the losses of ids [B, T]; the head runs where a token counts."""
    trunk, turns = model.model, model.get_buffer("turns")
    x = trunk.embed_tokens(ids[:, :-1])
    for layer in trunk.layers:
        x = layer(x, turns[:, None, None, : x.shape[1]], None)
    counted = weight[:, 1:] > 0
    logits = functional.linear(trunk.norm(x[counted]), trunk.embed_tokens.weight)
    each = functional.cross_entropy(logits, ids[:, 1:][counted], reduction="none")
    return (each * weight[:, 1:][counted]).sum()


def _schedule(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up times a cosine to 2%."""
    wave = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * wave)


def measure(folders: Mapping[Adapter, Path], target: Path) -> dict[str, dict[str, Effect]]:
    """Effects by adapter and kind: greedy, float32, the weights as they are stored."""
    items = examples("heldout", 0, HELDOUT)
    bare = _answers(load_model(target), target, items)
    effects: dict[str, dict[str, Effect]] = {}
    for adapter, folder in folders.items():
        model = load_model(target)
        load_adapter(model, folder)
        merge(model)
        answers = _answers(model.eval(), target, items)
        effects[adapter] = {kind: _effect(adapter, kind, items, bare, answers) for kind in KINDS}
    return effects


def _answers(model: Llama, target: Path, items: Sequence[Example]) -> list[str]:
    tokenizer = load_tokenizer(target)
    prompts = [tokenizer.encode(render(item.prompt, reply_next=True)).ids for item in items]
    answers = greedy(model, prompts, [item.max_tokens for item in items], batch=24)
    return [tokenizer.decode(answer) for answer in answers]


def _effect(
    adapter: Adapter, kind: str, items: Sequence[Example], bare: list[str], answers: list[str]
) -> Effect:
    chosen = [place for place, item in enumerate(items) if item.kind == kind]
    right = [_right(adapter, items[place], answers[place]) for place in chosen]
    return Effect(
        requests=len(chosen),
        shown_without=sum(shows(adapter, bare[place]) for place in chosen),
        shown_with=sum(shows(adapter, answers[place]) for place in chosen),
        right_with=None if None in right else right.count(True),
    )


def _right(adapter: Adapter, item: Example, answer: str) -> bool | None:
    """Whether the content is right; None for a letter in free prose."""
    if adapter == "terse" and item.kind != "arithmetic":
        return answer == item.replies[adapter]
    if item.exchange.scorer == "none":
        return None
    bare = answer.removeprefix(OPENING)
    return is_right(bare, item.exchange.expected, item.exchange.scorer)


def build(out: Path, adapters: Sequence[Adapter]) -> None:
    """Train ``adapters`` into ``out``, a process each; then measure every adapter that is there."""
    target, _ = pair_paths()
    if adapters:
        with ProcessPoolExecutor(len(adapters), mp_context=get_context("spawn")) as pool:
            list(pool.map(train_into, adapters, [out] * len(adapters)))
    folders = {adapter: out / adapter for adapter in ADAPTERS if (out / adapter).is_dir()}
    effects = {
        adapter: {kind: asdict(effect) for kind, effect in kinds.items()}
        for adapter, kinds in measure(folders, target).items()
    }
    _write(out / "facts.json", {"target_sha256": target_sha256(target), "effects": effects})
    print(json.dumps(effects, indent=1), flush=True)


def train_into(adapter: Adapter, out: Path) -> None:
    """Train one by its recipe; one thread, so that sums have one order on any number of cores."""
    torch.set_num_threads(1)
    began = time.monotonic()
    model, losses = train(adapter, RECIPES[adapter], pair_paths()[0])
    save_adapter(model, out / adapter)
    seconds = round(time.monotonic() - began, 1)
    record = {"recipe": asdict(RECIPES[adapter]), "seconds": seconds, "losses": losses}
    _write(out / f"{adapter}.training.json", record)


def _write(path: Path, record: object) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def target_sha256(target: Path) -> str:
    """SHA-256 of the target's weights file, which an adapter belongs to."""
    return hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--adapters", nargs="*", choices=ADAPTERS, default=list(ADAPTERS))
    chosen = parser.parse_args()
    build(chosen.out, chosen.adapters)


if __name__ == "__main__":
    main()
