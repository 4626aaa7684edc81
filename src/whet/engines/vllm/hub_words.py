"""A start command for any machine: hub checkpoints by id and revision, not by cache folder."""

from __future__ import annotations

import json
from collections.abc import Iterator

from whet.core.hub import snapshot_of


def by_hub_id(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command with every folder of the hub's cache as vLLM names it on another machine.

    The model and a draft get their commit too; vLLM takes no revision for an adapter.
    """
    return tuple(_words(argv))


def _words(argv: tuple[str, ...]) -> Iterator[str]:
    flag = ""
    for word in argv:
        if word.startswith("--") or word == "serve":
            flag = word
            yield word
        elif flag in ("--model", "serve") and (snapshot := snapshot_of(word)):
            yield from (snapshot.hub_id, "--revision", snapshot.commit)
        elif flag == "--speculative-config":
            yield _speculative_config(word)
        elif flag == "--lora-modules":
            yield _adapter(word)
        else:
            yield word


def _speculative_config(text: str) -> str:
    config = json.loads(text)
    snapshot = snapshot_of(config.get("model", ""))
    if snapshot is None:
        return text
    return json.dumps(config | {"model": snapshot.hub_id, "revision": snapshot.commit})


def _adapter(word: str) -> str:
    """``name=path``, or JSON where the path has a comma, which no path of the cache has."""
    name, _, path = word.partition("=")
    snapshot = None if word.startswith("{") else snapshot_of(path)
    return word if snapshot is None else f"{name}={snapshot.hub_id}"
