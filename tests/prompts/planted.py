"""A request log with causes planted in known numbers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

WORDS: Final = [
    "answer",
    "order",
    "refund",
    "parcel",
    "ticket",
    "customer",
    "polite",
    "short",
    "never",
    "always",
    "before",
    "after",
    "reply",
    "product",
    "warranty",
    "return",
    "address",
    "delivery",
    "payment",
    "invoice",
    "contact",
    "agent",
    "support",
    "policy",
    "level",
    "region",
    "store",
    "price",
    "stock",
    "offer",
    "model",
    "part",
    "cable",
    "lamp",
    "kettle",
    "router",
    "printer",
    "battery",
    "screen",
]
_KEYS: Final = ("brand", "country", "currency", "hours", "language", "support")
_TOOLS: Final = ("cancel_order", "find_order", "open_ticket", "refund", "track_parcel")
KINDS: Final = ("whitespace", "date", "id", "version", "name", "json", "order")
_CLEAN: Final[Mapping[str, str]] = {
    "date": "Today is Monday, 2 November 2026.",
    "id": "Session 3f2b8c1e-0000-4bbb-8ccc-1234567890ab.",
    "version": "Assistant 2.14.3.",
    "name": "You are talking to Alice Brown, a customer of ours.",
}


def planted_log(
    counts: Mapping[str, int], *, clean: int, tools: bool = True, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """``clean`` requests that share all but the question, and of each kind as many that lose.

    Each planted request differs from all others in one place only, near the prompt's start.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    row: list[str | None] = [None, *kinds, *[None] * (clean - 1)]
    head, rest = row[:1], row[1:]
    rng.shuffle(rest)
    orders = itertools.permutations(_TOOLS)
    keys = itertools.permutations(_KEYS)
    next(orders), next(keys)
    start = datetime(2026, 11, 2, 9, 0, 0, tzinfo=UTC)
    for index, kind in enumerate(head + rest):
        order = next(orders) if kind == "order" else _TOOLS
        names = next(keys) if kind == "json" else _KEYS
        yield {
            "timestamp": (start + timedelta(seconds=index)).isoformat(),
            "model": "demo",
            "messages": [
                {"role": "system", "content": _system(kind, index, names, rng)},
                {"role": "user", "content": question(index, rng)},
            ],
            **({"tools": [tool(name) for name in order]} if tools else {}),
        }


def _system(kind: str | None, index: int, keys: tuple[str, ...], rng: random.Random) -> str:
    told = dict(_CLEAN)
    if kind == "date":
        told["date"] = (
            f"Today is Monday, 2 November 2026 at 09:{index // 60 % 60:02d}:{index % 60:02d}."
        )
    elif kind == "id":
        told["id"] = f"Session {rng.getrandbits(32):08x}-0000-4bbb-8ccc-{rng.getrandbits(48):012x}."
    elif kind == "version":
        told["version"] = f"Assistant 2.15.{index}."
    elif kind == "name":
        first = "".join(rng.choice("aeioubdglmnrst") for _ in range(6)).capitalize()
        told["name"] = f"You are talking to {first} Jones, a customer of ours."
    shop = {"brand": "Lumen", "country": "IE", "currency": "EUR", "hours": "9-17",
            "language": "en", "support": "desk"}  # fmt: skip
    blanks = " " * (index + 1) if kind == "whitespace" else ""
    return "\n".join(
        [f"You are the support desk of a shop.{blanks}", *told.values(), "The shop:",
         json.dumps({key: shop[key] for key in keys}), *rules(40)]
    )  # fmt: skip


def rules(count: int, seed: str = "rules") -> list[str]:
    """Lines of instructions."""
    rng = random.Random(seed)
    return [
        f"Rule {WORDS[i % len(WORDS)]}: {' '.join(rng.choices(WORDS, k=14))}." for i in range(count)
    ]


def question(index: int, rng: random.Random) -> str:
    """What a user asks, like no other."""
    return f"Question about {' '.join(rng.choices(WORDS, k=30))}, my number is {index}?"


def tool(name: str) -> dict[str, Any]:
    """A tool in the form that is sent."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Use it to {name.replace('_', ' ')}.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}},
        },
    }
