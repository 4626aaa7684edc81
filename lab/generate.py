"""Greedy generation in batches, with a cache, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.model import Cache, Llama
from lab.tokenizer import END_ID, PAD_ID


def greedy(
    model: Llama, prompts: Sequence[Sequence[int]], limits: Sequence[int], *, batch: int = 128
) -> list[list[int]]:
    """The most likely continuation of each prompt, at most ``limits`` ids, without the end token.

    Prompts of like length run together; the order of the answers is that of the prompts.
    """
    order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), limits[index]))
    answers: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        replies = _run(model, [prompts[i] for i in chosen], [limits[i] for i in chosen])
        for index, answer in zip(chosen, replies, strict=True):
            answers[index] = answer
    return answers


@torch.inference_mode()
def _run(model: Llama, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ids = pad(prompts, device)
    longest = int(lengths.max())
    cache = Cache.empty(model, len(prompts), longest + max(limits))
    places = torch.arange(longest, device=device).expand(len(prompts), -1)
    logits = model(ids, cache, places)
    last = logits[torch.arange(len(prompts), device=device), lengths - 1].argmax(-1)
    steps = [last]
    ended = last == END_ID
    for step in range(max(limits) - 1):
        if step % 8 == 0 and bool(ended.all()):
            break
        last = model(last[:, None], cache, (lengths + step)[:, None])[:, 0].argmax(-1)
        ended |= last == END_ID
        steps.append(last)
    table = torch.stack(steps, 1).tolist()
    return [_until_end(row[:limit]) for row, limit in zip(table, limits, strict=True)]


def pad(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Sequences as one tensor [B, T], padded on the right."""
    longest = max(map(len, sequences))
    rows = [[*row, *[PAD_ID] * (longest - len(row))] for row in sequences]
    return torch.tensor(rows, device=device)


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(END_ID)] if END_ID in row else row
