"""Rows of logs with causes planted by construction."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.prefix.planted import WORDS, question, rules, tool

Row = dict[str, Any]
Rows = list[Row]

START: Final = datetime(2026, 11, 2, 9, 0, 0, tzinfo=UTC)
RULES: Final = rules(30)
BODY: Final = "\n".join(RULES)
NAMES: Final = ("cancel_order", "find_order", "open_ticket", "refund", "track_parcel")
EXAMPLES: Final = [
    (f"Where is {word} number {i} of mine, please tell me now?",
     f"It is at the {word} desk, level {i}, and our agent will deliver it tomorrow.")
    for i, word in enumerate(WORDS[:6])
]  # fmt: skip
SHORT: Final = [f"{one} -> {two}" for one, two in itertools.pairwise(WORDS[:8])]
CHUNKS: Final = [f"[{word}] {' '.join(rules(1, word))}" for word in WORDS[:6]]


def time_of(index: int) -> datetime:
    """A second after the other."""
    return START + timedelta(seconds=index)


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def name(seed: int) -> str:
    rng = random.Random(f"name{seed}")
    first, last = ("".join(rng.choices("aeioubdglmnrst", k=6)).capitalize() for _ in range(2))
    return f"{first} {last}"


def ask(index: int) -> str:
    return question(index, random.Random(index))


def chat(index: int, system: str | None, *rest: str | Row, tools: Sequence[Row] = ()) -> Row:
    told: Rows = [] if system is None else [{"role": "system", "content": system}]
    told += [each if isinstance(each, dict) else say("user", each) for each in rest]
    more = {"tools": list(tools)} if tools else {}
    return {"timestamp": time_of(index).isoformat(), "model": "m", "messages": told, **more}


def say(role: str, text: str) -> Row:
    return {"role": role, "content": text}


def plain(index: int, prompt: str) -> Row:
    return {"timestamp": time_of(index).isoformat(), "model": "m", "prompt": prompt}


def mixed(clean: int, planted: int, make: Callable[[int, int | None], Row]) -> Rows:
    """``clean`` requests, the first among them, and ``planted`` that are told their number."""
    row: list[int | None] = [*[None] * (clean - 1), *range(planted)]
    random.Random(5).shuffle(row)
    return [make(i, each) for i, each in enumerate([None, *row])]


def in_any_order(things: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """The order as it is, and ``count`` others."""
    first, *others = itertools.permutations(things)
    random.Random(3).shuffle(others)
    return [first, *others[:count]]


def ordered(things: Sequence[Any], make: Callable[[int, Sequence[Any]], Row]) -> Rows:
    orders = in_any_order(things, 20)
    return mixed(60, 20, lambda i, n: make(i, orders[0 if n is None else n + 1]))


def pairs_of_messages() -> Rows:
    return ordered(
        EXAMPLES,
        lambda i, order: chat(
            i, BODY,
            *(say(role, text) for pair in order
              for role, text in zip(("user", "assistant"), pair, strict=True)),
            ask(i),
        ),
    )  # fmt: skip


def inside(form: str, things: Sequence[Any]) -> Callable[[], Rows]:
    def build() -> Rows:
        return ordered(
            things,
            lambda i, order: chat(
                i,
                f"{RULES[0]}\nExamples:\n\n{''.join(form % each for each in order)}Now:\n{BODY}",
                ask(i),
            ),
        )

    return build


def chunks(as_chat: bool) -> Rows:
    """Two sets of three chunks, each in all six orders: the first of each loses nothing."""
    sets = (CHUNKS[:3], CHUNKS[3:])
    orders = [order for each in sets for order in itertools.permutations(each)] * 8
    random.Random(2).shuffle(orders)
    rows = []
    for i, order in enumerate(orders):
        text = "Documents:\n" + "\n".join(order) + f"\n\nQuestion: {ask(i)}"
        rows.append(chat(i, BODY, text) if as_chat else plain(i, f"{BODY}\n\n{text}"))
    return rows


def edited(*texts: str, each: int = 30) -> Rows:
    return [chat(i, texts[i // each], ask(i)) for i in range(each * len(texts))]


def edit(line: int, end: str, text: str = BODY) -> str:
    return text.replace(RULES[line], f"{RULES[line][:-1]} {end}.")


def conversations(
    count: int, turns: int, cut: Callable[[Rows], Rows], *, seed: int = 4, start: str = "{}"
) -> Rows:
    """Conversations that go on at the same time; ``cut`` drops what is dropped for good."""
    rng = random.Random(seed)
    rows = []
    for each in range(count):
        told: Rows = []
        for turn in range(turns):
            told = cut([*told, say("user", f"{seed}.{each}: {words(rng, 25)}")])
            rows.append((turn + 0.9 * rng.random(), told))
            told = [*told, say("assistant", words(rng, 25))]
    rows.sort(key=lambda row: row[0])
    return [
        chat(i, start.format(BODY, time=time_of(i).time()), *told)
        for i, (_, told) in enumerate(rows)
    ]


def last(count: int) -> Callable[[Rows], Rows]:
    return lambda told: told[-count:]


def by_steps(told: Rows) -> Rows:
    return told[4:] if len(told) > 7 else told


def line(form: str, clean: str, value: Callable[[int], str]) -> Callable[[], Rows]:
    """A line near the start with another text in each of 20 requests of 80."""

    def build() -> Rows:
        return mixed(60, 20, lambda i, n: chat(
            i, f"{RULES[0]}\n{form.format(clean if n is None else value(n))}\n{BODY}", ask(i)
        ))  # fmt: skip

    return build


def users(form: str) -> Rows:
    """Twenty users who come six times each."""
    row = [name(i) for i in range(20)] * 6
    random.Random(8).shuffle(row)
    return [
        chat(i, f"{RULES[0]}\n{form.format(who, city=who[:4], level=who[-3:])}\n{BODY}", ask(i))
        for i, who in enumerate(row)
    ]


PROFILE: Final = {
    "brand": "Lumen", "country": "IE", "language": "en", "support": "desk of the shop",
    "hours": {"open": "9", "close": "17", "days": [{"day": "mon", "late": "no"}]},
}  # fmt: skip


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same JSON with its keys in another order, at all depths."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}
    return [shuffled(each, rng) for each in value] if isinstance(value, list) else value


def profiles(form: str, dump: Callable[[Any], str] = json.dumps) -> Callable[[], Rows]:
    def build() -> Rows:
        told = dict.fromkeys([dump(PROFILE)])
        for seed in itertools.count():
            told[dump(shuffled(PROFILE, random.Random(seed)))] = None
            if len(told) == 21:
                break
        row = list(told)
        return line(form, row[0], lambda n: row[n + 1])()

    return build


def tool_keys() -> Rows:
    """Keys of the schemas; a server writes those above them in its own order."""
    orders = in_any_order(("type", "properties", "required", "title"), 20)

    def make(i: int, n: int | None) -> Row:
        tools = [tool(each) for each in NAMES]
        schema = {
            "type": "object", "properties": {"number": {"type": "string"}},
            "required": ["number"], "title": "what it takes",
        }  # fmt: skip
        tools[0]["function"]["parameters"] = {
            key: schema[key] for key in orders[0 if n is None else n + 1]
        }
        return chat(i, BODY, ask(i), tools=tools)

    return mixed(60, 20, make)


def timed(form: str, count: int = 80, *, system: bool = True) -> Rows:
    told = [
        form.format(BODY, time=f"{time_of(i):%Y-%m-%d %H:%M:%S}", name=name(i),
                    id=f"{random.Random(i).getrandbits(48):012x}00aa")
        for i in range(count)
    ]  # fmt: skip
    return [
        chat(i, text, ask(i)) if system else chat(i, None, f"{text}\n{ask(i)}")
        for i, text in enumerate(told)
    ]


def apps(texts: Sequence[str]) -> Rows:
    rng = random.Random(0)
    return [chat(i, rng.choice(texts), ask(i)) for i in range(100)]


def app(seed: int, shared: Sequence[str] = ()) -> str:
    told = rules(30, f"app{seed}")
    for at, each in enumerate(random.Random(seed).sample(shared, len(shared))):
        told.insert(3 + 9 * at, each)
    return "\n".join(told)


def tails() -> Iterator[str]:
    """What users write is their own, however it looks."""
    for i in itertools.count():
        yield (
            f"Where is order #{10000 + i}?",
            f"On 2026-11-{i % 28 + 1:02d} I  bought  a lamp",
            f"My name is {name(i)}, hello there",
            json.dumps({"b": i, "a": [{"x": 1, "c": 2}], "id": f"{i:08x}"}),
            'Look:\n\n\n  {"z": 1, "a": 2, "say": "hello"}  \n\nthanks',
            "How do I send back what I bought of you last week?",
        )[i % 6]


CODE: Final = (
    "import os\nimport sys\n\n\n\ndef main():\n    x  =  1\n    for i in range(10):\n"
    "        print( i )\n\n    return x\n\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
)


def code(*, same: bool) -> Rows:
    """Code that a user sends, the same each time or made of common lines and others."""
    rng = random.Random(0)
    common = [f"    {one} = {two}( {one} )   # {two}\n" for one, two in itertools.pairwise(WORDS)]
    rows = []
    for i in range(100):
        own = (f"call_{rng.choice(WORDS)}(  {rng.random()} )\n" for _ in range(12))
        lines = "".join(each + rng.choice(common) for each in own)
        told = CODE if same else lines
        rows.append(chat(i, BODY, f"Mend {words(rng, 9)}:\n```\n{told}```\nand {words(rng, 6)}."))
    return rows


def agents() -> Rows:
    """Agents that call the same tools, and get the same answers, again and again."""
    rng = random.Random(4)
    told = (
        "Error: the order was not found, try it once more with another number, please.",
        "The order is at the desk and the agent will send it tomorrow, if all goes well.",
    )
    rows = []
    for each in range(10):
        messages: Rows = [say("user", ask(each))]
        for turn in range(8):
            rows.append((turn + rng.random(), list(messages)))
            call = {"name": "find_order", "arguments": json.dumps({"number": rng.randrange(3)})}
            calls = [{"id": f"c{each}{turn}", "type": "function", "function": call}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages.append({**say("tool", rng.choice(told)), "tool_call_id": f"c{each}{turn}"})
    rows.sort(key=lambda row: row[0])
    return [
        chat(i, BODY, *each, tools=[tool(n) for n in NAMES]) for i, (_, each) in enumerate(rows)
    ]


def same_turns() -> Rows:
    """Users who say one of two things at every turn."""
    rng = random.Random(4)
    said = [f"Go on with it and do not stop before it is done: {ask(i)}" for i in range(2)]
    rows = []
    for _ in range(15):
        messages: Rows = []
        for turn in range(6):
            messages = [*messages, say("user", rng.choice(said))]
            rows.append((turn + rng.random(), messages))
            messages = [*messages, say("assistant", words(rng, 25))]
    rows.sort(key=lambda row: row[0])
    return [chat(i, BODY, *each) for i, (_, each) in enumerate(rows)]
