"""What a variant claims, what the engine said or counted, and whether the one proves the other."""

from __future__ import annotations

from whet.evidence.cells import judge_cell
from whet.evidence.claims import claims
from whet.evidence.facts import read_engine_facts, read_notices
from whet.evidence.start import judge_start

__all__ = ["claims", "judge_cell", "judge_start", "read_engine_facts", "read_notices"]
