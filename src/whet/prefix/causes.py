"""Say what keeps requests that should share from sharing.

A request is told in pieces, each as it was sent and in its one form. Where the request is the first
to have a beginning as it was sent, but not the first to have it in its one form, the piece at which
the two part is what keeps it from sharing; its tokens are those that the mended request would have
found and the sent one did not.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from whet.prefix.canon import EXAMPLES, LAST_MESSAGES, place_of
from whet.prefix.seen import SeenHashes
from whet.prefix.turns import Turns

_NOT_INSTRUCTIONS: Final = frozenset({place_of("user"), EXAMPLES, LAST_MESSAGES})
_MOST_VERSIONS: Final = 512
_ROLLOUT: Final = 0.02
"""Share of a new prompt's time in which the one before may still come, from slower servers."""
_LEAST_KNOWN: Final = 0.5
"""Share of the stable text after a difference that other prompts have too, in a changed prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One request as it is judged: a line each for its pieces.

    ``raw`` and ``canon`` are the pieces' hashes chained, each with all before it, ``units`` the
    hashes of their one form alone; ``kinds`` and ``where`` are what and where they are, ``lengths``
    their characters. A piece without a kind is text that only this request need have.
    ``messages`` are hashes and characters of the messages after the examples. ``characters`` and
    ``tokens`` are of the whole prompt. ``head`` counts the pieces up to the last that others may
    have, ``instructions`` stands for what a conversation begins with.
    """

    at_ns: int | None
    raw: array[int]
    canon: array[int]
    units: array[int]
    kinds: tuple[str, ...]
    where: tuple[str, ...]
    lengths: array[int]
    messages: Sequence[tuple[int, int]]
    characters: int
    tokens: int
    head: int = field(init=False)
    instructions: int = field(init=False)

    def __post_init__(self) -> None:
        """Look at what the pieces are."""
        head, told = _ends(self.kinds, self.where)
        object.__setattr__(self, "head", head)
        object.__setattr__(self, "instructions", self.canon[told - 1] if told else 0)


@lru_cache(maxsize=4096)
def _ends(kinds: tuple[str, ...], where: tuple[str, ...]) -> tuple[int, int]:
    """How many pieces there are up to the last that others may have, and to the last of them
    among the instructions. Most requests of a log are of few forms."""
    stable = [at for at, kind in enumerate(kinds) if kind]
    told = [at for at in stable if where[at] not in _NOT_INSTRUCTIONS]
    return stable[-1] + 1 if stable else 0, told[-1] + 1 if told else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A request's first difference: its kind, where it is, and the tokens computed anew for it."""

    kind: str
    where: str
    tokens: int


@dataclass(slots=True)
class _Version:
    """A head that was met: the hashes along it, and the first and the last request with it."""

    path: tuple[int, ...]
    first: int
    last: int
    at_ns: int | None
    loss: Loss | None = None
    parts_at: int = 0


@dataclass(kw_only=True, slots=True)
class Tally:
    """What one kind of cause costs in one place."""

    requests: int = 0
    tokens: int = 0
    since_ns: int | None = None


@dataclass(slots=True)
class Losses:
    """Judges requests one after another. ``block_size`` is tokens a KV block."""

    block_size: int
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    _raw: SeenHashes = field(default_factory=SeenHashes)
    _canon: SeenHashes = field(default_factory=SeenHashes)
    _known: set[int] = field(default_factory=set)
    _turns: Turns = field(default_factory=Turns)
    _versions: dict[int, _Version] = field(default_factory=dict)
    _paths: set[int] = field(default_factory=set)

    def judge(self, reading: Reading, *, index: int, hits: int, mended: int) -> Loss | None:
        """The loss of a request that found ``hits`` tokens and would have found ``mended``.

        ``index`` counts the requests.
        """
        end = reading.head
        raw, canon = reading.raw[:end], reading.canon[:end]
        first = _first_new(self._raw, raw) if end and raw[-1] not in self._raw else None
        loss = self._told_loss(reading, canon, first, mended - hits)
        cut = self._truncation(reading, hits)
        if loss is None and first is not None:
            loss = self._changed(reading, canon, first)
            if loss is not None:
                cut = None
        if loss is None:
            loss = cut
        if first is not None:
            self._raw.update(raw)
            self._canon.update(canon)
            self._known.update(
                each for each, kind in zip(reading.units, reading.kinds, strict=True) if kind
            )
        if end:
            self._remember(reading, canon, index, loss)
        if loss is not None and loss.kind != "changed":
            self._count(loss)
        return loss

    def settle(self) -> dict[tuple[str, str], Tally]:
        """All tallies, once every request was judged: only now is it known whether a prompt that
        was changed stayed so, or two versions of it are in use side by side."""
        versions = list(self._versions.values())
        for new in versions:
            if new.loss is None:
                continue
            before = new.path[new.parts_at - 1] if new.parts_at else 0
            old = [v for v in versions if v.first < new.first and (not before or before in v.path)]
            overlap = _ROLLOUT * (new.last - new.first)
            replaced = all(each.last < new.first + overlap for each in old)
            kind = "changed" if replaced else "varying"
            tally = self._count(Loss(kind=kind, where=new.loss.where, tokens=new.loss.tokens))
            if replaced:
                tally.since_ns = new.at_ns
        return self.tallies

    def _count(self, loss: Loss) -> Tally:
        tally = self.tallies[loss.kind, loss.where]
        tally.requests += 1
        tally.tokens += loss.tokens
        return tally

    def _told_loss(
        self, reading: Reading, canon: Sequence[int], first: int | None, lost: int
    ) -> Loss | None:
        if first is None or lost < self.block_size or canon[first] not in self._canon:
            return None
        return Loss(kind=reading.kinds[first] or "varying", where=reading.where[first], tokens=lost)

    def _changed(self, reading: Reading, canon: Sequence[int], first: int) -> Loss | None:
        """A head whose text differs from all before, though most of what follows is known."""
        if canon[first] in self._canon or not self._known or reading.kinds[first] == "order":
            return None
        after = range(first + 1, len(canon))
        text = sum(reading.lengths[i] for i in after)
        known = sum(
            reading.lengths[i]
            for i in after
            if reading.kinds[i] and reading.units[i] in self._known
        )
        tokens = self._tokens(reading, known)
        if tokens < self.block_size or known < _LEAST_KNOWN * text:
            return None
        return Loss(kind="changed", where=reading.where[first], tokens=tokens)

    def _truncation(self, reading: Reading, hits: int) -> Loss | None:
        kept = self._turns.add(reading.instructions, reading.messages)
        tokens = min(self._tokens(reading, kept), reading.tokens - hits)
        if tokens < self.block_size:
            return None
        return Loss(kind="truncation", where="the history", tokens=tokens)

    def _tokens(self, reading: Reading, characters: int) -> int:
        """Full blocks' tokens of a stretch of text, at the request's own tokens a character."""
        tokens = characters * reading.tokens / max(reading.characters, 1)
        return int(tokens // self.block_size) * self.block_size

    def _remember(
        self, reading: Reading, canon: Sequence[int], index: int, loss: Loss | None
    ) -> None:
        version = self._versions.get(canon[-1])
        if version is not None:
            version.last = index
        elif len(self._versions) < _MOST_VERSIONS:
            changed = loss if loss is not None and loss.kind == "changed" else None
            self._versions[canon[-1]] = _Version(
                path=tuple(canon), first=index, last=index, at_ns=reading.at_ns,
                loss=changed, parts_at=_first_new(self._paths, canon) or 0,
            )  # fmt: skip
            self._paths.update(canon)


def _first_new(seen: SeenHashes | set[int], chained: Sequence[int]) -> int | None:
    """The place of the first hash that is not in ``seen``; all before one that is in it are."""
    low, high = 0, len(chained)
    while low < high:
        middle = (low + high) // 2
        if chained[middle] in seen:
            low = middle + 1
        else:
            high = middle
    return low if low < len(chained) else None
