"""Speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED
from whet.core.flags import format_value
from whet.core.hub import snapshot_of
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.records.evidence import Claim, Evidence
from whet.levers.base import Cell, Lever, Outcome, claim_per_cell
from whet.levers.counters import counter_change, idle, unread

SYNTHETIC_MARGIN: Final = 0.05
"""A simulated acceptance length may miss the requested one by this share."""
PAYS_NOTHING: Final = 1.05
"""Below this acceptance length a draft's few hits could as well be chance."""


class SpeculativeDecoding(Lever):
    """``speculation``: the method, K, and the draft model or head."""

    name = "speculation"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``speculation=draft_model K=4 by NAME``."""
        if variant.speculation is not None:
            draft = variant.speculation.draft_path
            by = "" if draft is None else f" by {_model_name(draft)}"
            yield f"speculation={speculation_label(variant)}{by}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Tokens accepted, or no draft at all."""
        if resolved.variant.speculation is None:
            yield claim_per_cell(
                "speculation",
                "no speculation",
                "the speculation counters are absent or do not move",
            )
            return
        yield claim_per_cell(
            "speculation",
            f"speculation by {speculation_label(resolved.variant)} has tokens accepted",
            "drafts and accepted tokens both rise over the timed requests",
        )

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """By the counters of drafts and accepted tokens."""
        speculation = cell.variant.speculation
        return _off(cell) if speculation is None else _on(cell, speculation)


def speculation_label(variant: Variant) -> str:
    """``draft_model K=4``, with its further options; empty without speculation."""
    speculation = variant.speculation
    if speculation is None:
        return ""
    options = "".join(f" {key}={format_value(v)}" for key, v in sorted(speculation.options))
    return f"{speculation.method} K={speculation.num_tokens}{options}"


def _model_name(path: str) -> str:
    """The folder's name, or the hub id of a snapshot, whose folder is named by its revision."""
    snapshot = snapshot_of(path)
    return Path(path).name if snapshot is None else snapshot.hub_id


def _on(cell: Cell, speculation: Speculation) -> Outcome:
    drafts, accepted = counter_change(DRAFTS, cell.trials), counter_change(ACCEPTED, cell.trials)
    drafted = counter_change(DRAFT_TOKENS, cell.trials)
    sources = (drafts.source, drafted.source, accepted.source)
    if drafts.delta is None or accepted.delta is None:
        return unread(drafts, accepted)
    if drafts.delta <= 0:
        return "contradicted", "nothing was drafted in the timed window", sources
    if accepted.delta <= 0 and speculation.synthetic_length != 1:
        observed = (
            f"{drafts.delta:,.0f} drafts and not one token accepted: is the draft's vocabulary "
            "the target's, id by id?"
        )
        return "contradicted", observed, sources
    word, observed = _accepted(drafts.delta, drafted.delta, accepted.delta, speculation)
    return word, observed, sources


def _accepted(
    drafts: float, drafted: float | None, accepted: float, speculation: Speculation
) -> tuple[Evidence, str]:
    length = 1 + accepted / drafts
    observed = f"acceptance length {length:.2f} ({accepted:,.0f} tokens accepted in "
    observed += f"{drafts:,.0f} drafts)"
    wanted = speculation.synthetic_length
    if wanted is not None and abs(length / wanted - 1) > SYNTHETIC_MARGIN:
        return "contradicted", f"{observed}, where {wanted} was to be simulated"
    proposed = max(drafted or 0.0, accepted)
    if proposed > drafts * speculation.num_tokens:
        counted = f"{proposed:,.0f} tokens in {drafts:,.0f} drafts"
        return "contradicted", f"{counted} are more than K={speculation.num_tokens} allows"
    if length >= PAYS_NOTHING or wanted is not None:
        return "proved", observed
    if speculation.draft_path is None:  # without a draft model the vocabulary cannot differ
        return "proved", f"{observed}: it pays nothing"
    why = "it pays nothing, and a draft with another vocabulary would look the same"
    return "unproved", f"{observed}: {why}"


def _off(cell: Cell) -> Outcome:
    drafts, generated = counter_change(DRAFTS, cell.trials), counter_change(GENERATED, cell.trials)
    if not generated.delta:  # without the server's other counters, an absence says nothing
        return unread(generated) if generated.delta is None else idle(generated)
    sources = (drafts.source, generated.source)
    if drafts.absent:
        return "proved", "the server exports no speculation counters", sources
    if drafts.delta is None:
        return unread(drafts)
    if drafts.delta > 0:
        return "contradicted", f"{drafts.delta:,.0f} drafts were made", (drafts.source,)
    return "proved", "no draft was made", (drafts.source,)
