"""Training rows: generated chats as token ids, one chat a row, in buckets of like length."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lab.text import Message, documents
from lab.tokenizer import BOS_ID, END_ID, PAD_ID, ROLE_IDS, load_tokenizer

BUCKETS = (256, 448, 896, 1536)
"""Row lengths in tokens; a chat goes to the shortest that holds it, longer chats are left out."""

CONTEXT_WEIGHT = 0.1
"""What a token of a prompt counts in the loss; a token of a reply counts 1."""

LEAST_REPLY_WEIGHT = 12.0
"""What a reply counts at least: a one-word answer is worth as much as twelve tokens of a letter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """One bucket: token ids [rows, length], and what each counts in the loss as a prediction."""

    ids: NDArray[np.uint16]
    weight: NDArray[np.float16]


def make_rows(seed: int, shards: int, chats: int, tokenizer: Path, workers: int) -> list[Rows]:
    """``shards`` times ``chats`` training chats in buckets, made by ``workers`` processes."""
    work = partial(shard_rows, chats=chats, tokenizer=tokenizer)
    seeds = [seed + index for index in range(shards)]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(work, seeds))
    return [
        Rows(
            ids=np.concatenate([part[place].ids for part in parts]),
            weight=np.concatenate([part[place].weight for part in parts]),
        )
        for place in range(len(BUCKETS))
    ]


def shard_rows(seed: int, chats: int, tokenizer: Path) -> list[Rows]:
    """The rows of one seed, a bucket each."""
    encoder = load_tokenizer(tokenizer)
    by_length: dict[int, list[tuple[list[int], list[float]]]] = {length: [] for length in BUCKETS}
    for chat in documents(seed, chats, "train"):
        ids, reply = encode_chat(encoder, chat.messages())
        length = next((length for length in BUCKETS if len(ids) <= length), None)
        if length is not None:
            gap = length - len(ids)
            by_length[length].append((ids + [PAD_ID] * gap, loss_weights(reply) + [0.0] * gap))
    return [
        Rows(
            ids=np.array([row[0] for row in rows], dtype=np.uint16).reshape(-1, length),
            weight=np.array([row[1] for row in rows], dtype=np.float16).reshape(-1, length),
        )
        for length, rows in by_length.items()
    ]


def encode_chat(encoder: Tokenizer, messages: Iterable[Message]) -> tuple[list[int], list[int]]:
    """Ids of a chat and, per id, how long the reply is that it belongs to (0 in prompts).

    The end token of a reply belongs to the reply.
    """
    ids = [BOS_ID]
    reply = [0]
    for message in messages:
        body = [*encoder.encode(message.content, add_special_tokens=False).ids, END_ID]
        ids += [ROLE_IDS[message.role], *body]
        reply += [0] + [len(body) if message.role == "assistant" else 0] * len(body)
    return ids, reply


def loss_weights(reply: list[int]) -> list[float]:
    """Weights of a chat's tokens from the reply lengths that ``encode_chat`` gives."""
    return [max(1.0, LEAST_REPLY_WEIGHT / size) if size else CONTEXT_WEIGHT for size in reply]
