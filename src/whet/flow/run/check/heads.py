"""Heads and drafts of a search: those that the spec names, the model's own, and published ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.heads import head_problem, read_head
from whet.core.errors import CheckpointError, UsageError
from whet.core.records.model import ModelFacts
from whet.core.spec import Spec
from whet.data.heads import PublishedHead, published_heads
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.situation import Head

_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def find_heads(spec: Spec, target: ModelFacts, checkpoints: Checkpoints) -> Iterator[Head]:
    """Yield every head for the target; of a published one that does not fit, the reason.

    Of several published heads of one method the first that fits is tried.

    Raises ``UsageError`` for a head of ``search.heads`` that is of another model, and
    ``CheckpointError`` for one that cannot be read.
    """
    named = () if spec.search is None else spec.search.heads
    for ref in named:
        yield named_head(ref, target, checkpoints)
    rows = list(_listed(target))
    if target.mtp_parameters:
        row = next((row for row, _ in rows if not row.head), None)
        yield Head(
            ref="",
            method="mtp",
            num_tokens=None if row is None else row.num_tokens,
            source="layers that the model brings",
            options={},
        )
    chosen: set[tuple[str, tuple[str, ...]]] = set()
    for row, source in rows:
        if not row.head or row.head in named:
            continue
        kind = row.method, row.options
        head = _published(row, source, target, checkpoints, skip=kind in chosen)
        if head.problem is None:
            chosen.add(kind)
        yield head


def named_head(ref: str, target: ModelFacts, checkpoints: Checkpoints) -> Head:
    """Return the head that the user names.

    Raises ``UsageError`` where it is of another model, ``CheckpointError`` where it cannot be read.
    """
    with checkpoints.readable_errors("search.heads: "):
        head = read_head(checkpoints.find(ref))
        if (problem := head_problem(head, target)) is not None:
            raise UsageError(
                f"{ref} was made for another model: {problem}",
                fix="give a head that was trained for this target, or leave it out",
            )
    return Head(
        ref=ref,
        method=head.method,
        num_tokens=head.num_tokens,
        source="search.heads",
        options=head.options,
    )


def _listed(target: ModelFacts) -> Iterator[tuple[PublishedHead, str]]:
    """Yield the rows for the target, then those for the model that config.json says it comes from.

    Each with where it is listed. ``_name_or_path`` names what a fine-tune or a copy began as.
    """
    config = read_json_if_any(Path(target.path) / "config.json")
    base = str(config.get("_name_or_path") or "")
    own = target.hub_id or ""
    for row in published_heads(own):
        yield row, f"listed for {own} ({row.source or 'its model card'})"
    if base != own and _HUB_ID.fullmatch(base):
        for row in published_heads(base):
            yield row, f"trained for {base}, which config.json names as the target's origin"


def _published(
    row: PublishedHead, source: str, target: ModelFacts, checkpoints: Checkpoints, *, skip: bool
) -> Head:
    """Return a listed head, with the reason where it is left out; only its headers are fetched."""
    options: dict[str, object] = dict.fromkeys(row.options, True)
    num_tokens, problem = row.num_tokens, None
    if skip:
        problem = f"another {row.method} head is tried; name this one in search.heads to try it"
    else:
        before = set(checkpoints.missing)
        try:
            facts = read_head(checkpoints.find(row.head))
            problem = head_problem(facts, target)
            num_tokens = num_tokens or facts.num_tokens
        except CheckpointError as error:
            problem = checkpoints.readable(str(error))
        if problem is not None:
            checkpoints.leave_out(set(checkpoints.missing) - before)
    return Head(
        ref=row.head,
        method=row.method,
        num_tokens=num_tokens,
        source=source,
        options=options,
        problem=problem,
    )
