"""Logs by name: the rows, and the requests of each kind that are planted in them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Final

from tests.prefix.planted import WORDS, tool
from tests.prefix.scenarios import (
    BODY,
    CHUNKS,
    EXAMPLES,
    NAMES,
    RULES,
    SHORT,
    Rows,
    agents,
    app,
    apps,
    ask,
    by_steps,
    chat,
    chunks,
    code,
    conversations,
    edit,
    edited,
    inside,
    last,
    line,
    name,
    ordered,
    pairs_of_messages,
    plain,
    profiles,
    same_turns,
    tails,
    timed,
    tool_keys,
    users,
    words,
)

FOUND: Final[Mapping[str, tuple[Callable[[], Rows], Mapping[str, int]]]] = {
    "examples as messages": (pairs_of_messages, {"order": 20}),
    "examples as paragraphs": (inside("User: %s\nAssistant: %s\n\n", EXAMPLES), {"order": 20}),
    "examples as lines": (inside("%s -> %s\n", EXAMPLES), {"order": 20}),
    "examples as short lines": (inside("%s\n", SHORT[:6]), {"order": 20}),
    "chunks": (lambda: chunks(True), {"order": 10}),
    "chunks in a plain prompt": (lambda: chunks(False), {"order": 10}),
    "an edit": (lambda: edited(BODY, edit(3, "and the newest")), {"changed": 1}),
    "a late edit": (
        lambda: [*edited(BODY, each=80), chat(80, edit(3, "x"), "a"), chat(81, edit(3, "x"), "b")],
        {"changed": 1},
    ),
    "a line more": (
        lambda: edited(BODY, BODY.replace(RULES[3], f"{RULES[3]}\nNo more.")),
        {"changed": 1},
    ),
    "a line less": (lambda: edited(BODY, BODY.replace(f"{RULES[3]}\n", "")), {"changed": 1}),
    "edits of a line": (
        lambda: edited(*(edit(3, f"and the {word}") for word in WORDS[:5])),
        {"changed": 4},
    ),
    "edits of lines": (
        lambda: edited(BODY, one := edit(3, "x"), two := edit(9, "y", one), edit(1, "z", two)),
        {"changed": 3},
    ),
    "two versions": (
        lambda: [chat(i, edit(3, "x") if i % 2 else BODY, ask(i)) for i in range(80)],
        {"varying": 1},
    ),
    # turns 6 to 10 of 12 conversations have more than 9 messages
    "history by turns": (lambda: conversations(12, 10, last(9)), {"truncation": 12 * 5}),
    # an answer comes first: turns 4 to 10
    "history by messages": (lambda: conversations(10, 10, last(6)), {"truncation": 10 * 7}),
    # 9 messages at turns 5, 7 and 9
    "history by steps": (lambda: conversations(12, 10, by_steps), {"truncation": 12 * 3}),
    "history of some": (
        lambda: [
            row
            for both in itertools.zip_longest(
                conversations(8, 10, last(9)), conversations(8, 8, last(99), seed=9)
            )
            for row in both
            if row
        ],
        {"truncation": 8 * 5},
    ),
    "canary": (line("Build {} of it.", "1.4.2", lambda n: f"1.5.0-rc.{n}"), {"version": 20}),
    "name first": (line("{} is whom you talk to.", "Alice Brown", name), {"name": 20}),
    "name inside": (line("You talk to {}, be kind.", "Alice Brown", name), {"name": 20}),
    "name last": (line("The customer is {}.", "Alice Brown", name), {"name": 20}),
    "name alone": (line("{}", "Alice Brown", name), {"name": 20}),
    "greeting": (line("Hello {},", "Alice", lambda n: name(n).split()[0]), {"name": 20}),
    "customer": (line("Customer: {}", "lamp", lambda n: f"{WORDS[n]} {name(n)}"), {"name": 20}),
    "e-mail": (line("It is {} only.", "a@b.com", lambda n: f"u{n}@c.org"), {"name": 20}),
    "about": (
        line("About: {}", words(random.Random(1), 20), lambda n: words(random.Random(n + 2), 20)),
        {"varying": 20},
    ),
    "users": (lambda: users("You talk to {}, be kind."), {"name": 19}),
    "users' lines": (lambda: users("Name: {}\nCity: {city}\nLevel: {level}"), {"name": 19}),
    "blank lines": (line("Be kind.{}", "", lambda n: "\n" * (n + 1)), {"whitespace": 20}),
    "trailing blanks": (line("Be kind.{}", "", lambda n: " " * (n + 1)), {"whitespace": 20}),
    "blanks": (line("Be{}kind.", "  ", lambda n: " " * (n + 3)), {"whitespace": 20}),
    "JSON": (profiles("{}"), {"json": 20}),
    "JSON in a line": (profiles("The profile is {} and no other."), {"json": 20}),
    "JSON in lines": (
        profiles("Profile:\n```json\n{}\n```\nNow:", lambda v: json.dumps(v, indent=4)),
        {"json": 20},
    ),
    "compact JSON": (
        profiles("P: {}", lambda v: json.dumps(v, separators=(",", ":"))),
        {"json": 20},
    ),
    "a date in JSON": (
        line('{{"now": "{}", "shop": "Lumen"}}', "2026-11-02", lambda n: f"2026-12-{n + 1:02d}"),
        {"date": 20},
    ),
    "keys of tools": (tool_keys, {"json": 20}),
    "order of tools": (
        lambda: ordered(
            NAMES, lambda i, order: chat(i, BODY, ask(i), tools=[tool(n) for n in order])
        ),
        {"order": 20},
    ),
    "one chunk of five": (
        lambda: [
            chat(i, f"{RULES[0]}\n{random.Random(i).choice(CHUNKS[:5])}\nNow:\n{BODY}", ask(i))
            for i in range(80)
        ],
        {"varying": 4},
    ),
    "two causes": (lambda: timed("It is {time}.\nBe kind.\nSession {id}.\n{}"), {"date": 79}),
    "two causes in a paragraph": (
        lambda: [
            chat(i, row["messages"][0]["content"].replace("\n", " "), ask(i))
            for i, row in enumerate(timed("It is {time}. You talk to {name}, be kind. {}"))
        ],
        {"date": 79},
    ),
    "a date in a user's message": (lambda: timed("It is {time}.\n{}", system=False), {"date": 79}),
    # every turn is first kept from sharing by the time; what was cut shows once that is mended
    "a time before history": (
        lambda: conversations(8, 8, last(9), start="It is {time}.\n{}"),
        {"date": 8 * 8 - 1},
    ),
    "question first": (lambda: [plain(i, f"{ask(i)}\n{BODY}") for i in range(80)], {"varying": 79}),
    "named question first": (
        lambda: [plain(i, f"Question: {ask(i)}\n\n{BODY}\nAnswer:") for i in range(80)],
        {"varying": 79},
    ),
    "short question first": (
        lambda: [plain(i, f"{words(random.Random(i), 3)} {i}\n{BODY}") for i in range(80)],
        {"name": 79},
    ),
    "the same code after a question": (lambda: code(same=True), {"varying": 99}),
}  # fmt: skip

NOTHING: Final[Mapping[str, Callable[[], Rows]]] = {
    "apps": lambda: apps([app(k) for k in range(5)]),
    "apps of one start": lambda: apps([f"You are an assistant.\n{app(k)}" for k in range(5)]),
    "apps that share lines": lambda: apps(
        [app(k, ("Be polite to all.", "Never lie.", "Answer in short.")) for k in range(5)]
    ),
    "what never changes": lambda: [
        chat(i, f"Today is 2026-11-02.\nBuild v2.3.1  of it. \n\n\n\n{BODY}", ask(i),
             tools=[tool(n) for n in reversed(NAMES)])
        for i in range(80)
    ],
    "users' own words": lambda: [
        chat(i, BODY, text) for i, text in enumerate(itertools.islice(tails(), 150))
    ],
    "code": lambda: code(same=False),
    "growing conversations": lambda: conversations(10, 8, last(99)),
    "agents": agents,
    "same turns": same_turns,
    "a short line last": lambda: [chat(i, BODY, f"{ask(i)}\nIn short.") for i in range(80)],
    "a date last": lambda: timed("{}\nIt is {time}."),
    "instructions first": lambda: [plain(i, f"{BODY}\n\nQ: {ask(i)}\nA:") for i in range(80)],
    "unrelated": lambda: [
        chat(i, None, f"{words(random.Random(i), 80)}\n{words(random.Random(-i), 30)}")
        for i in range(80)
    ],
    "one request": lambda: [chat(0, f"Today is 2026-11-02.\n{BODY}", ask(0))],
    "no instructions": lambda: [chat(i, "", ask(i)) for i in range(80)],
    "all the same": lambda: [chat(0, f"It is 10:00.\n{BODY}", "Hello  you")] * 60,
}  # fmt: skip
