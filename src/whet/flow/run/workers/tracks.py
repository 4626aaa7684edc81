"""Which visits are made on one device, in which order, and which may start."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whet.core.store import RunStore
from whet.flow.run.measure.quality import needs_answers_of
from whet.flow.run.measure.rounds import Session
from whet.flow.run.plan import RATE_SEARCH


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
class Track:
    """Visits of one device that have not ended; ``node`` is the one that made the last."""

    visits: deque[Session]
    node: str | None = None
    is_busy: bool = False
    is_begun: bool = False


class Board:
    """The visits that are left."""

    def __init__(self, store: RunStore, baseline: str, tracks: Sequence[Sequence[Session]]) -> None:
        self._store, self._baseline = store, baseline
        self._tracks = [Track(visits=deque(track)) for track in tracks]

    @property
    def left(self) -> int:
        """How many visits have not ended."""
        return sum(len(track.visits) for track in self._tracks)

    def take(self, workers: int) -> Iterator[Track]:
        """Yield tracks whose next visit may start on ``workers`` devices, begun ones first."""
        for track in sorted(self._tracks, key=lambda each: not each.is_begun):
            begun = sum(each.is_begun and bool(each.visits) for each in self._tracks)
            if not track.visits or track.is_busy or not (track.is_begun or begun < workers):
                continue
            if self._may_start(track.visits[0]):
                track.is_busy = track.is_begun = True
                yield track

    def end(self, track: Track) -> None:
        """The first visit of the track has been made."""
        track.visits.popleft()
        track.is_busy = False

    def _may_start(self, visit: Session) -> bool:
        """Whether the answers that this visit's are compared with are there, or will never be."""
        works = [each for each in visit.pending(self._store) if each.quality]
        before = [
            other
            for track in self._tracks
            for other in track.visits
            if other.round == visit.round
            and other.position < visit.position
            and other.pending(self._store)
        ]
        return not any(
            needs_answers_of(pending.resolved, resolved, baseline=self._baseline)
            for pending in works
            for other in before
            for resolved, _ in other.group
        )
