"""The claims of the start that is running now, judged from the engine's own log."""

from __future__ import annotations

from pathlib import Path

from whet.core.records.engine import ResolvedEngine
from whet.engines import get_profile
from whet.levers import judge_start


def broken_claims(log: Path, engine: ResolvedEngine) -> dict[str, str]:
    """Claims that the last start in ``log`` contradicts, with what the log says; empty without log.

    A log of several starts is read from the last one on.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    profile = get_profile(engine.engine)
    start = text.rfind(profile.start_line) if profile.start_line else -1
    facts = profile.read_log(text[max(0, text.rfind("\n", 0, max(0, start))) :])
    return {
        verdict.claim.kind: verdict.observed
        for verdict in judge_start(engine, facts)
        if verdict.outcome == "contradicted"
    }
