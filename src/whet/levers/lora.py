"""LoRA adapters beside the weights."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.counters import LORA_RUNNING
from whet.core.records import Claim, ResolvedEngine, Variant
from whet.levers.base import Cell, Lever, Outcome, Start, claim_per_cell, claim_per_start


class Lora(Lever):
    """``loras``: adapters that the timed requests name in turn; ``max_loras`` fit at once."""

    name = "lora"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``lora=a+b``, with ``cold`` where not all fit beside the weights."""
        if variant.loras:
            few = variant.max_loras is not None and variant.max_loras < len(variant.loras)
            names = "+".join(name for name, _ in variant.loras)
            yield f"lora={names}{' cold' if few else ''}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Loaded at the start, and run by the timed requests."""
        if not resolved.variant.loras:
            return
        names = ", ".join(name for name, _ in resolved.variant.loras)
        yield claim_per_start(
            "lora",
            f"the adapters {names} are loaded",
            "/v1/models lists them and the log reports each",
        )
        yield claim_per_cell(
            "lora_requests",
            f"the timed requests ran with the adapters {names}",
            "the server answered each request under its adapter's name, and its metrics count them",
        )

    def judge_start(self, claim: Claim, start: Start) -> Outcome | None:
        """The adapters listed as models, and the log's line for each."""
        if claim.per_cell:
            return None
        wanted = [name for name, _ in start.variant.loras]
        listed, loaded = start.declared.models, start.facts.loras
        quotes = (f"/v1/models: {', '.join(listed) or 'nothing'}", f"the log: {', '.join(loaded)}")
        absent = [name for name in wanted if name not in listed]
        if absent and listed:
            return "contradicted", f"not listed: {', '.join(absent)}", quotes
        unproved = [name for name in wanted if name not in loaded or name not in listed]
        if unproved:
            return "unproved", f"nothing shows that {', '.join(unproved)} was loaded", quotes
        return "proved", f"{len(wanted)} adapters loaded and listed", quotes

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """Every adapter ran in every trial: its gauge holds the time when it last did."""
        names = [name for name, _ in cell.variant.loras]
        ran: set[str] = set()
        together, missing, reported = 0, set[str](), False
        for trial in cell.trials:
            if trial.counters_before is None or trial.counters_after is None:
                return "unproved", "the metrics were not scraped", ()
            before = dict(trial.counters_before.values)
            groups = {
                name.removeprefix(LORA_RUNNING).removesuffix('"}')
                for name, value in trial.counters_after.values
                if name.startswith(LORA_RUNNING) and value > before.get(name, 0.0)
            }
            reported = reported or bool(groups)
            now = {one for group in groups for one in group.split(",") if one}
            together = max(together, *(len(group.split(",")) for group in groups), 0)
            missing |= set(names) - now
            ran |= now
        quotes = (
            f"vllm:lora_requests_info running_lora_adapters: {', '.join(sorted(ran)) or 'none'}",
        )
        if not reported:
            return "unproved", "no data: vllm:lora_requests_info reports no adapter", quotes
        if missing:
            return "contradicted", f"no request ran with {', '.join(sorted(missing))}", quotes
        return "proved", f"{len(names)} adapters ran, up to {together} together", quotes
