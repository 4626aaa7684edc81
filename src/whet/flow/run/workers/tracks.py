"""Which visits are made on one device, in which order, and who makes the next one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from whet.flow.run.measure.quality import needs_answers_of
from whet.flow.run.measure.rounds import Session
from whet.flow.run.plan import RATE_SEARCH
from whet.flow.run.workers.messages import Job

Owner = TypeVar("Owner")


def split_rounds(
    rounds: Sequence[Sequence[Session]], workers: int, *, alike: bool
) -> list[list[Session]]:
    """Visits by device: each list is made on one, in its order.

    A round on one device is a block: the difference between two of its variants holds nothing of
    the device. As long as every device gets two, it takes two that follow each other, one forwards
    and one backwards; then each takes one. What is left is fewer than there are devices, and is
    split over them if they are ``alike``: a variant then meets another device in each round, and
    what devices differ by is part of the spread of starts. Finalists are not split, and searches
    compare nothing.
    """
    title = rounds[0][0].title if rounds and rounds[0] else ""
    if title == RATE_SEARCH:
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
    visits: deque[Session]
    owner: Owner | None = None


class Board(Generic[Owner]):
    """The visits that are left. A track belongs to whoever takes its first visit."""

    def __init__(self, job: Job, tracks: Sequence[Sequence[Session]]) -> None:
        self._job = job
        self._tracks = [_Track[Owner](visits=deque(track)) for track in tracks]
        self._taken: dict[Owner, tuple[_Track[Owner], Session]] = {}
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

    def take(self, owner: Owner) -> Session | None:
        """Their next visit; None while nothing is left for them, or all of it has to wait."""
        for track in self._candidates(owner):
            if track.visits and self._may_start(track.visits[0]):
                track.owner = owner
                visit = track.visits.popleft()
                self._taken[owner] = track, visit
                return visit
        return None

    def end(self, owner: Owner) -> Session:
        """Their visit has been made."""
        _, visit = self._taken.pop(owner)
        self._left.remove(visit)
        return visit

    def give_back(self, owner: Owner) -> Session | None:
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

    def _may_start(self, visit: Session) -> bool:
        """Whether the answers that this visit's are held against are there, or will never be."""
        works = [each for each in visit.pending(self._job.recorder.store) if each.quality]
        before = [
            other
            for other in self._left
            if other.round == visit.round
            and other.position < visit.position
            and other.pending(self._job.recorder.store)
        ]
        return not any(
            needs_answers_of(pending.resolved, resolved, baseline=self._job.plan.spec.baseline)
            for pending in works
            for other in before
            for resolved, _ in other.group
        )
