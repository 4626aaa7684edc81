"""Generate the input files of a run: calibration chats, held-out chats, tasks and a workload.

Every file is a pure function of the seed. Calibration text is of the training split;
everything else is held out: its names, products and order numbers occur in no training chat.

    python -m lab.inputs     writes the files of seed 0 to src/whet/data, compressed
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from lab.text import Dice, Exchange, Split, document, draw_system
from lab.text.corpus import Maker
from lab.text.extraction import extraction
from lab.text.letters import letter
from lab.text.lookup import lookup
from lab.text.orders import correction
from lab.text.questions import catalogue_question
from lab.text.shop import ISSUES
from lab.text.sums import arithmetic
from lab.text.system import SystemPrompt
from lab.text.tickets import PRIORITIES, WISHES
from whet.core.store import write_atomic
from whet.data import FOLDER, Name

CALIBRATION_LINES = 512
HELDOUT_LINES = 256
SHORT_SYSTEMS = 12
LONG_SYSTEMS = 12
USER_TURNS = 2400
MAX_CHARS = 5600
"""Longest chat of the calibration and held-out files, at most about 1760 tokens."""

TASKS: tuple[tuple[str, int, int, Maker], ...] = (
    ("json_extraction", 96, 160, extraction),
    ("arithmetic", 128, 256, arithmetic),
    ("recall", 96, 24, catalogue_question),
    ("correction", 48, 112, correction),
    ("reply", 48, 128, letter),
    ("lookup", 96, 16, lookup),
)
"""Task name, how many, the most tokens of a reply, and what draws one."""

PROSE_SCORER = "rouge_l"
"""How text is scored that has no one right wording."""

WORKLOAD_MIX: tuple[tuple[Maker, float], ...] = (
    (extraction, 0.4),
    (letter, 0.35),
    (arithmetic, 0.25),
)
USER_CHARS = (95, 480)
"""Shortest and longest user turn of the workload, about 30 to 150 tokens."""


def write_inputs(out_dir: Path, *, seed: int) -> None:
    """Write ``calibration``, ``heldout``, ``tasks`` and ``workload`` as JSON lines."""
    for name, content in generate(seed).items():
        write_atomic(out_dir / f"{name}.jsonl", content)


def generate(seed: int) -> dict[Name, bytes]:
    """The content of each file."""
    return {
        "calibration": _jsonl(_chats("train", seed, CALIBRATION_LINES)),
        "heldout": _jsonl(_chats("heldout", seed, HELDOUT_LINES)),
        "tasks": _jsonl(_tasks(seed)),
        "workload": _jsonl(_workload(seed)),
    }


def _chats(split: Split, seed: int, count: int) -> Iterator[dict[str, object]]:
    index = 0
    while count:
        chat = document(Dice("inputs", split, seed, index), split)
        index += 1
        messages = [message.as_dict() for message in chat.messages()]
        if sum(len(message["content"]) for message in messages) <= MAX_CHARS:
            count -= 1
            yield {"messages": messages}


def _tasks(seed: int) -> Iterator[dict[str, object]]:
    """Each task alternates between a short and a long system prompt, as far as it can."""
    for name, count, limit, make in TASKS:
        for index in range(count):
            dice = Dice("tasks", name, seed, index)
            long = index % 2 == 1 or make is catalogue_question
            size = "none" if make is lookup else "long" if long else "short"
            system = draw_system(dice, "heldout", size)
            item = make(dice, "heldout", system)
            head = [{"role": "system", "content": system.text}] if system.text else []
            schema = answer_schema(item)
            yield {
                "id": f"{name}-{index:03d}",
                "task": name,
                "messages": head + [message.as_dict() for message in item.prompt()],
                "expected": item.expected,
                "scorer": PROSE_SCORER if item.scorer == "none" else item.scorer,
                "max_tokens": limit,
                **({} if schema is None else {"schema": schema}),
                **({} if item.chance is None else {"chance": item.chance}),
            }


def answer_schema(item: Exchange) -> dict[str, object] | None:
    """The JSON Schema of a reply to ``item``, None for a reply that is not JSON.

    The schema has what the request names: which parts, in which order. The request does not say
    whether a ticket mentions a wish, so a wish is always allowed.
    """
    if item.scorer != "json_exact":
        return None
    keys = list(json.loads(item.expected))
    if item.task == "correction":
        return _object({"items": _ITEMS})
    if "order_id" in keys:
        return _object(_FLAT)
    named = dict.fromkeys([*keys, "wish"])
    return _object({key: _NESTED[key] for key in named}, optional=("wish",))


def _object(properties: dict[str, object], optional: Collection[str] = ()) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in optional],
        "additionalProperties": False,
    }


_TEXT: dict[str, object] = {"type": "string", "minLength": 1}
_COUNT: dict[str, object] = {"type": "integer", "minimum": 1}
_ORDER_ID: dict[str, object] = {"type": "string", "pattern": "^[A-Z]-[0-9]{5}$"}
_ISSUE: dict[str, object] = {"enum": list(ISSUES)}
_PRIORITY: dict[str, object] = {"enum": ["normal", *PRIORITIES]}
_ITEMS: dict[str, object] = {
    "type": "array",
    "items": _object({"product": _TEXT, "qty": _COUNT}),
    "minItems": 1,
}
_NESTED: dict[str, object] = {
    "customer": _object({"name": _TEXT, "email": _TEXT, "city": _TEXT}, optional=("email", "city")),
    "order": _object({"id": _ORDER_ID, "items": _ITEMS}),
    "issue": _ISSUE,
    "priority": _PRIORITY,
    "wish": {"enum": list(WISHES)},
}
_FLAT: dict[str, object] = {
    "name": _TEXT,
    "email": {"type": ["string", "null"]},
    "city": {"type": ["string", "null"]},
    "order_id": _ORDER_ID,
    "products": {"type": "array", "items": _TEXT, "minItems": 1},
    "pieces": _COUNT,
    "issue": _ISSUE,
    "priority": _PRIORITY,
}


def _workload(seed: int) -> Iterator[dict[str, object]]:
    for size, count in (("short", SHORT_SYSTEMS), ("long", LONG_SYSTEMS)):
        for index in range(count):
            system = draw_system(Dice("workload", size, seed, index), "heldout", size)
            yield {"kind": f"system_{size}", "text": system.text}
    turns: set[str] = set()
    index = 0
    while len(turns) < USER_TURNS:
        text = _user_turn(Dice("workload", "user", seed, index)).user
        index += 1
        if text not in turns and USER_CHARS[0] <= len(text) <= USER_CHARS[1]:
            turns.add(text)
            yield {"kind": "user", "text": text}


def _user_turn(dice: Dice) -> Exchange:
    """A turn that makes sense under any system prompt: it names no catalogue."""
    bare: SystemPrompt = draw_system(dice, "heldout", "short")
    return dice.weighted(WORKLOAD_MIX)(dice, "heldout", bare)


def _jsonl(lines: Iterable[dict[str, object]]) -> bytes:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


if __name__ == "__main__":
    for file, text in generate(seed=0).items():
        write_atomic(
            FOLDER / f"{file}.jsonl.xz", lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
        )
