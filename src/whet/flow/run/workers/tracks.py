"""Which visits are made on one device, in which order, and who makes the next one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from whet.flow.run.measure.context import Job
from whet.flow.run.measure.quality import is_held_against
from whet.flow.run.measure.rounds import SEARCH, Visit

Owner = TypeVar("Owner")


def split_rounds(
    rounds: Sequence[Sequence[Visit]], workers: int, *, alike: bool
) -> list[list[Visit]]:
    """Visits by device: each list is made on one, in its order.

    A round on one device is a block: the difference between two of its variants holds nothing of
    the device. As long as every device gets two, it takes two that follow each other, one forwards
    and one backwards; then each takes one. What is left is fewer than there are devices, and is
    split over them if they are ``alike``: a variant then meets another device in each round, and
    what devices differ by is part of the spread of starts. Finalists are not split, and searches
    compare nothing.
    """
    title = rounds[0][0].title if rounds and rounds[0] else ""
    if title == SEARCH:
        return [[each] for turn in rounds for each in turn]
    paired = len(rounds) - len(rounds) % (2 * workers)
    alone = paired + (len(rounds) - paired) // workers * workers
    tracks = [[*rounds[at], *rounds[at + 1]] for at in range(0, paired, 2)]
    tracks += [list(turn) for turn in rounds[paired:alone]]
    last = rounds[alone:]
    parts = math.ceil(workers / len(last)) if last and alike and not title else 1
    tracks += [list(turn[part::parts]) for turn in last for part in range(parts)]
    return [track for track in tracks if track]


@dataclass(eq=False, slots=True)
class _Track(Generic[Owner]):
    visits: deque[Visit]
    owner: Owner | None = None


class Board(Generic[Owner]):
    """The visits that are left. A track belongs to whoever takes its first visit."""

    def __init__(self, job: Job, tracks: Sequence[Sequence[Visit]]) -> None:
        self._job = job
        self._tracks = [_Track[Owner](visits=deque(track)) for track in tracks]
        self._taken: dict[Owner, tuple[_Track[Owner], Visit]] = {}
        self._left = [visit for track in tracks for visit in track]

    @property
    def finished(self) -> bool:
        """Whether every visit has been made."""
        return not self._left

    @property
    def left(self) -> int:
        """How many visits have not been made."""
        return len(self._left)

    def is_busy(self, owner: Owner) -> bool:
        """Whether a visit of theirs has not ended."""
        return owner in self._taken

    def take(self, owner: Owner) -> Visit | None:
        """Their next visit; None while nothing is left for them, or all of it has to wait."""
        for track in self._candidates(owner):
            if track.visits and self._may_start(track.visits[0]):
                track.owner = owner
                visit = track.visits.popleft()
                self._taken[owner] = track, visit
                return visit
        return None

    def end(self, owner: Owner) -> Visit:
        """Their visit has been made."""
        _, visit = self._taken.pop(owner)
        self._left.remove(visit)
        return visit

    def give_back(self, owner: Owner) -> Visit | None:
        """They are gone: their visit is the first of a track that another may take."""
        for track in self._tracks:
            if track.owner == owner:
                track.owner = None
        if owner not in self._taken:
            return None
        track, visit = self._taken.pop(owner)
        track.visits.appendleft(visit)
        return visit

    def _candidates(self, owner: Owner) -> Iterator[_Track[Owner]]:
        own = [track for track in self._tracks if track.owner == owner and track.visits]
        yield from own or (track for track in self._tracks if track.owner is None)

    def _may_start(self, visit: Visit) -> bool:
        """Whether the answers that this visit's are held against are there, or will never be."""
        works = [each for each in visit.works(self._job) if each.quality]
        before = [
            other
            for other in self._left
            if other.turn == visit.turn and other.place < visit.place and other.works(self._job)
        ]
        return not any(
            is_held_against(self._job, pending.resolved, resolved)
            for pending in works
            for other in before
            for resolved, _ in other.group
        )
