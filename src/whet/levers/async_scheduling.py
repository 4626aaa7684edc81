"""Asynchronous scheduling."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Claim
from whet.levers.base import Lever, Outcome, Start, claim_per_start
from whet.levers.settings import ON


class AsyncScheduling(Lever):
    """``async_scheduling``."""

    name = "async_scheduling"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where the flag is set, either way."""
        if (scheduling := plain_args(resolved.variant).get("async_scheduling")) is not None:
            yield claim_per_start(
                "async_scheduling",
                f"asynchronous scheduling is {'on' if scheduling else 'off'}",
                "the log and /server_info agree",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """The log's line and the resolved setting; one that says otherwise is enough."""
        wanted = bool(start.args["async_scheduling"])
        setting = start.declared.setting("scheduler_config.async_scheduling")
        sources = {
            "the log": start.facts.async_scheduling,
            "/server_info": None if setting is None else setting.lower() in ON,
        }
        quotes = tuple(f"{where}: {word}" for where, word in sources.items() if word is not None)
        values = {word for word in sources.values() if word is not None}
        pattern = re.compile(start.profile.patterns.async_off)
        off = tuple(n for n in start.facts.notices if pattern.search(n))
        if wanted and off:
            return "contradicted", off[0], off
        if not values:
            return "unproved", "neither the log nor /server_info reports it", ()
        return ("proved" if values == {wanted} else "contradicted"), "; ".join(quotes), quotes
