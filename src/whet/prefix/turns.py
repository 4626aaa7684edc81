"""Tell a conversation whose oldest messages were dropped from one that grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from whet.prefix.seen import SeenHashes

_MOST_MESSAGES: Final = 400_000
_LEAST_KEPT: Final = 2
"""Messages in a row; a single one may be what many say at some time."""


@dataclass(slots=True)
class Turns:
    """The conversations met so far.

    A conversation that grows begins with all of an earlier request. One that was cut parts from
    the earlier ones at a message that one of them had further on.
    """

    _chains: SeenHashes = field(default_factory=SeenHashes)
    _whole: SeenHashes = field(default_factory=SeenHashes)
    _places: dict[int, int] = field(default_factory=dict)

    def add(self, head: int, messages: Sequence[tuple[int, int]]) -> int:
        """Characters of the messages that moved forward, as some before them were dropped.

        ``head`` is what stands for the instructions, ``messages`` a hash and characters for each
        message after them.
        """
        if not messages:
            return 0
        keys, chains, chain = [], [], head
        for each, _ in messages:
            keys.append(hash((head, each)))
            chain = hash((chain, each)) & 0xFFFFFFFFFFFFFFFF
            chains.append(chain)
        new = next((i for i, each in enumerate(chains) if each not in self._chains), None)
        kept = count = 0
        if new is not None and not (new and chains[new - 1] in self._whole):
            for at in range(new, len(messages)):
                if self._places.get(keys[at], -1) <= at:
                    break
                kept += messages[at][1]
                count += 1
        self._chains.update(chains)
        self._whole.update(chains[-1:])
        if len(self._places) > _MOST_MESSAGES:
            self._places = dict(list(self._places.items())[_MOST_MESSAGES // 2 :])
        self._places.update((key, at) for at, key in enumerate(keys))
        return kept if count >= _LEAST_KEPT else 0
