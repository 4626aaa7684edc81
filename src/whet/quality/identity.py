"""Whether a served variant reads, writes and ends text as the baseline's tokenizer says.

Perplexity and task prompts are sent as token ids, so a server with another tokenizer may pass
both and still print other words, or read a person's text as other tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.client import Failure, post_many
from whet.core.errors import CheckpointError
from whet.core.records import ServedIdentity, TaskAnswer
from whet.quality.asking import why
from whet.quality.data import Message
from whet.quality.paired import SIGNIFICANCE, mcnemar
from whet.quality.token_units import Unit, vocabulary_units

_PIECE: Final = 4096
"""Entries of the vocabulary a request: a vocabulary of 150 k takes 37 and as many back."""
_CONCURRENCY: Final = 4
_TIMEOUT_S: Final = 120.0
_TOLD: Final = 4
"""Differences named one by one; the rest are counted in pieces."""
_MOST_FORCED: Final = 64
_CUT: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class _Served:
    """The server asked, and the tokenizer that it should have."""

    url: str
    model: str
    tokenizer: Any

    def post(
        self, path: str, bodies: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any] | Failure]:
        full = [{"model": self.model, **body} for body in bodies]
        return post_many(self.url, path, full, concurrency=_CONCURRENCY, timeout_s=_TIMEOUT_S)

    def written(self, runs: Sequence[Sequence[int]]) -> list[str | Failure]:
        """The server's text of each run of token ids (vLLM's ``/detokenize``)."""
        replies = self.post("/detokenize", [{"tokens": list(run)} for run in runs])
        return [_field(reply, "prompt", str) for reply in replies]

    def read(self, bodies: Sequence[Mapping[str, Any]]) -> list[list[int] | Failure]:
        """The server's token ids of each text or chat (vLLM's ``/tokenize``)."""
        return [_field(reply, "tokens", list) for reply in self.post("/tokenize", bodies)]

    def here(self, run: Sequence[int]) -> str:
        """The baseline's text of a run of ids, special tokens written out as a server does."""
        return str(self.tokenizer.decode(list(run)))

    def ids(self, text: str, *, specials: bool) -> list[int]:
        """The baseline's ids of a text."""
        found = self.tokenizer(text, add_special_tokens=specials, verbose=False)
        return list(found["input_ids"])


@dataclass(frozen=True, kw_only=True, slots=True)
class EndingShift:
    """How answers end here and on the baseline, paired by question.

    ``lost`` ended by themselves on the baseline and ran into their limit here, ``gained`` the
    reverse; ``p_value`` is McNemar's exact test. Of the answers that ended by themselves on both,
    ``shorter`` and ``longer`` have fewer and more tokens here, and ``p_length`` is the exact sign
    test. ``missing`` says why nothing could be paired.
    """

    pairs: int
    lost: int
    gained: int
    p_value: float | None
    shorter: int
    longer: int
    p_length: float | None
    missing: str | None = None

    @property
    def problem(self) -> str | None:
        """In words: significantly more answers do not end by themselves; None where not so."""
        if self.p_value is None or self.p_value >= SIGNIFICANCE or self.lost <= self.gained:
            return None
        return (
            f"{self.lost} of {self.pairs} answers that ended by themselves on the baseline run "
            f"into their limit here, {self.gained} the reverse (p = {self.p_value:.2g}); check "
            "eos_token_id in generation_config.json and eos_token in tokenizer_config.json"
        )


def served_identity(
    server_url: str,
    model: str,
    tokenizer_folder: Path,
    texts: Sequence[str],
    *,
    chats: Sequence[Sequence[Message]] = (),
) -> ServedIdentity:
    """Compare the server's tokens with those of the baseline's folder.

    Asked are the text of every id of the vocabulary and the ids of that text, the ids of ``texts``
    and of ``chats`` (by the server's own template), and which ids end an answer. ``checked`` counts
    the ids whose text can tell them from any other: a byte that occurs in no UTF-8 text cannot.
    ``missing`` says what could not be asked, even where another part found problems.
    ``CheckpointError`` where the folder has no tokenizer.
    """
    served = _Served(url=server_url, model=model, tokenizer=_load(tokenizer_folder))
    units = vocabulary_units(served.tokenizer)
    probe = served.written([units[0].ids])[0]
    if isinstance(probe, Failure):
        return ServedIdentity(
            checked=0,
            problems=(),
            missing=f"the server does not answer /detokenize ({why(probe)})",
        )
    parts = [
        _vocabulary(served, units),
        _texts(served, texts),
        _chats(served, chats),
        _endings(served, _ends(tokenizer_folder, served.tokenizer)),
    ]
    gaps = [part.missing for part in parts if part.missing is not None]
    return ServedIdentity(
        checked=parts[0].checked,
        problems=tuple(problem for part in parts for problem in part.problems),
        missing="; ".join(gaps) or None,
    )


def ending_shift(here: Sequence[TaskAnswer], baseline: Sequence[TaskAnswer]) -> EndingShift:
    """Whether answers end where the baseline's do: the mark of a wrong end of sequence.

    Answers are paired by id; those without a ``finish_reason`` on either side are left out.
    """
    before = {answer.id: answer for answer in baseline if answer.finish_reason is not None}
    pairs = [
        (before[answer.id], answer)
        for answer in here
        if answer.id in before and answer.finish_reason is not None
    ]
    ended = [(was.finish_reason == "stop", now.finish_reason == "stop") for was, now in pairs]
    lost = sum(was and not now for was, now in ended)
    gained = sum(now and not was for was, now in ended)
    lengths = [
        (was.tokens, now.tokens)
        for (was, now), both in zip(pairs, ended, strict=True)
        if both == (True, True)
    ]
    counted = [(was, now) for was, now in lengths if was is not None and now is not None]
    shorter = sum(now < was for was, now in counted)
    longer = sum(now > was for was, now in counted)
    return EndingShift(
        pairs=len(pairs),
        lost=lost,
        gained=gained,
        p_value=mcnemar(lost, gained) if pairs else None,
        shorter=shorter,
        longer=longer,
        p_length=mcnemar(shorter, longer) if counted else None,
        missing=None if pairs else "no answer on both sides says how it ended",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """What one kind of question found."""

    checked: int = 0
    problems: tuple[str, ...] = ()
    missing: str | None = None


def _vocabulary(served: _Served, units: Sequence[Unit]) -> _Part:
    """Every id written as text, and that text read as ids."""
    pieces = [units[at : at + _PIECE] for at in range(0, len(units), _PIECE)]
    texts = [served.here(_run(piece)) for piece in pieces]
    written = served.written([_run(piece) for piece in pieces])
    failed = [text for text in written if isinstance(text, Failure)]
    if failed:
        return _Part(missing=f"/detokenize failed on the vocabulary ({why(failed[0])})")
    wrong = [piece for piece, a, b in zip(pieces, texts, written, strict=True) if a != b]
    problems = _named(served, wrong)
    if len(problems) > _TOLD:
        problems[_TOLD:] = [f"and more, in {len(wrong)} of {len(pieces)} parts of the vocabulary"]
    bodies = [{"prompt": text, "add_special_tokens": False} for text in texts]
    wanted = [served.ids(text, specials=False) for text in texts]
    back = _compared(served, bodies, wanted, "the text of the vocabulary")
    return _Part(
        checked=sum(unit.told for unit in units),
        problems=(*problems, *back.problems),
        missing=back.missing,
    )


def _named(served: _Served, wrong: Sequence[Sequence[Unit]]) -> list[str]:
    """The first differing ids in words, one more than are told, by halving the pieces."""
    pieces = list(wrong[: _TOLD + 1])
    while any(len(piece) > 1 for piece in pieces):
        halves = [
            half
            for piece in pieces
            for half in (piece[: len(piece) // 2], piece[len(piece) // 2 :])
            if half
        ]
        said = served.written([_run(half) for half in halves])
        pieces = [
            half
            for half, text in zip(halves, said, strict=True)
            if not isinstance(text, Failure) and text != served.here(_run(half))
        ][: _TOLD + 1]
    runs = [piece[0].ids[-piece[0].length :] for piece in pieces]
    return [
        f"{_called(run)} is written {_shown(text)}, "
        f"and by the baseline's tokenizer {_shown(served.here(run))}"
        for run, text in zip(runs, served.written(runs), strict=True)
        if not isinstance(text, Failure)
    ]


def _called(run: Sequence[int]) -> str:
    """A part of a character is only seen in a run, and any id of the run may be the wrong one."""
    ids = " ".join(map(str, run))
    return f"token id {ids}" if len(run) == 1 else f"the run of token ids {ids}"


def _texts(served: _Served, texts: Sequence[str]) -> _Part:
    bodies = [{"prompt": text, "add_special_tokens": True} for text in texts]
    wanted = [served.ids(text, specials=True) for text in texts]
    return _compared(served, bodies, wanted, "a held-out text")


def _chats(served: _Served, chats: Sequence[Sequence[Message]]) -> _Part:
    """Chats by the server's own template, up to where the assistant speaks."""
    if not chats or not served.tokenizer.chat_template:
        return _Part()
    plain = [[{"role": m.role, "content": m.content} for m in chat] for chat in chats]
    rendered = [
        served.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in plain
    ]
    wanted = [served.ids(text, specials=False) for text in rendered]
    bodies = [{"messages": chat, "add_generation_prompt": True} for chat in plain]
    return _compared(served, bodies, wanted, "a chat by the server's template")


def _compared(
    served: _Served,
    bodies: Sequence[Mapping[str, Any]],
    wanted: Sequence[Sequence[int]],
    what: str,
) -> _Part:
    """The first place where the server reads ids other than ``wanted``, and how often."""
    found = served.read(bodies)
    failed = [ids for ids in found if isinstance(ids, Failure)]
    wrong = [
        (ids, right)
        for ids, right in zip(found, wanted, strict=True)
        if not isinstance(ids, Failure) and ids != list(right)
    ]
    missing = f"/tokenize failed on {what} ({why(failed[0])})" if failed else None
    if not wrong:
        return _Part(missing=missing)
    ids, right = wrong[0]
    shared = min(len(ids), len(right))
    at = next((i for i in range(shared) if ids[i] != right[i]), shared)
    before, here = served.here(right[max(0, at - 4) : at]), _shown(served.here(right[at : at + 1]))
    problem = (
        f"{what} is read as other tokens ({len(wrong)} of {len(wanted)}): after {_shown(before)}, "
        f"{here} is id {_at(ids, at)} and to the baseline's tokenizer {_at(right, at)}"
    )
    return _Part(problems=(problem,), missing=missing)


def _endings(served: _Served, ends: frozenset[int]) -> _Part:
    """Which ids end an answer: each is forced as the only token allowed, and again if it did not.

    An answer of two such tokens went on after the first. Added tokens are asked too, as the ends
    that somebody may have set in error.
    """
    if not ends:
        return _Part(missing="the baseline's folder names no end of sequence")
    added = sorted(served.tokenizer.added_tokens_decoder.keys() - ends)
    asked = [*sorted(ends), *added][:_MOST_FORCED]
    bodies = [_forced(token, served) for token in asked]
    ended = [
        _ended(r, token)
        for r, token in zip(served.post("/v1/completions", bodies), asked, strict=True)
    ]
    problems, silent = [], 0
    for token, end in zip(asked, ended, strict=True):
        name = f"token id {token} ({_shown(served.here([token]))})"
        if end is None:
            silent += 1
        elif token in ends and not end:
            problems.append(f"{name} does not end an answer, and does on the baseline")
        elif end and token not in ends:
            problems.append(f"{name} ends an answer, and does not on the baseline")
    missing = (
        f"which tokens end an answer was not told for {silent} of {len(asked)}: the server does "
        "not heed allowed_token_ids or return_token_ids"
    )
    return _Part(problems=tuple(problems), missing=missing if silent else None)


def _forced(token: int, served: _Served) -> dict[str, Any]:
    prompt = served.ids("a", specials=True)
    return {
        "prompt": prompt,
        "max_tokens": 2,
        "temperature": 0.0,
        "allowed_token_ids": [token],
        "return_token_ids": True,
    }


def _ended(reply: dict[str, Any] | Failure, token: int) -> bool | None:
    """Whether a forced token ended the answer; None where it was not forced or is not shown."""
    if isinstance(reply, Failure):
        return None
    choice = (reply.get("choices") or [{}])[0]
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    if ids == [token] and reason == "stop":
        return True
    return False if ids == [token, token] else None


def _ends(folder: Path, tokenizer: Any) -> frozenset[int]:
    """The ids that end an answer in an engine: the tokenizer's and the generation config's.

    config.json stands in where there is no generation_config.json (vLLM and transformers alike).
    """
    ends = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    files = (folder / name for name in ("generation_config.json", "config.json"))
    file = next((file for file in files if file.exists()), None)
    if file is not None:
        try:
            value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"{file} is no JSON object; copy it from the model") from error
        ends |= {
            each for each in (value if isinstance(value, list) else [value]) if each is not None
        }
    return frozenset(ends)


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"no tokenizer can be read from {folder}; copy tokenizer.json beside the weights"
        ) from error


def _field(reply: dict[str, Any] | Failure, name: str, kind: type) -> Any:
    """A field of a reply, or why there is none."""
    if isinstance(reply, Failure):
        return reply
    value = reply.get(name)
    if isinstance(value, kind):
        return value
    return Failure(error="bad_json", detail=f"a reply without {name}")


def _run(units: Iterable[Unit]) -> list[int]:
    return [token for unit in units for token in unit.ids]


def _at(ids: Sequence[int], place: int) -> str:
    return str(ids[place]) if place < len(ids) else "nothing"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _CUT else text[:_CUT] + "…")
