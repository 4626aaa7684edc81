"""LoRA adapters beside the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from random import Random

from whet.core.counters import LORA_RUNNING
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.evidence import Claim
from whet.levers.base import Cell, Lever, Outcome, Start, claim_per_cell, claim_per_start


class Lora(Lever):
    """``loras``: adapters that the timed requests name; ``max_loras`` fit at once."""

    name = "lora"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``lora=a+b``, with ``cold`` where not all fit beside the weights."""
        if variant.loras:
            few = variant.max_loras is not None and variant.max_loras < len(variant.loras)
            names = adapters_words([name for name, _ in variant.loras]).replace(", ", "+")
            skew = f" skew {variant.lora_skew:g}" if variant.lora_skew else ""
            yield f"lora={names}{skew}{' cold' if few else ''}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Loaded at the start, and run by the timed requests."""
        if not resolved.variant.loras:
            return
        names = adapters_words([name for name, _ in resolved.variant.loras])
        yield claim_per_start(
            "lora",
            f"{_adapters(names)} are loaded",
            "/v1/models lists them and the log reports each",
        )
        yield claim_per_cell(
            "lora_requests",
            f"the timed requests ran with {_adapters(names)}",
            "the server answered each request under its adapter's name, and its metrics count them",
        )

    def judge_start(self, claim: Claim, start: Start) -> Outcome | None:
        """The adapters listed as models, and the log's line for each."""
        if claim.per_cell:
            return None
        wanted = [name for name, _ in start.variant.loras]
        listed, loaded = start.declared.models, start.facts.loras
        quotes = (
            f"/v1/models: {adapters_words(listed, most=9) or 'nothing'}",
            f"the log: {adapters_words(loaded, most=9)}",
        )
        absent = [name for name in wanted if name not in listed]
        if absent and listed:
            return "contradicted", f"not listed: {adapters_words(absent)}", quotes
        unproved = [name for name in wanted if name not in loaded or name not in listed]
        if unproved:
            return "unproved", f"nothing shows that {adapters_words(unproved)} was loaded", quotes
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
            named = adapter_order(
                names, len(trial.requests), skew=cell.variant.lora_skew, seed=trial.trial
            )
            missing |= set(named) - now
            ran |= now
        quotes = (
            "vllm:lora_requests_info running_lora_adapters: "
            f"{adapters_words(sorted(ran), most=9) or 'none'}",
        )
        if not reported:
            return "unproved", "no data: vllm:lora_requests_info reports no adapter", quotes
        if missing:
            absent = adapters_words(sorted(missing))
            return "contradicted", f"no request ran with {absent}", quotes
        return "proved", f"{len(ran)} adapters ran, up to {together} together", quotes


def _adapters(names: str) -> str:
    """``the adapters a, b``, or ``100 adapters``."""
    return names if names.endswith(" adapters") else f"the adapters {names}"


def adapter_order(names: Sequence[str], requests: int, *, skew: float, seed: int) -> list[str]:
    """The adapter of each request, the same for the same ``seed``.

    In turn for a ``skew`` of 0; else drawn by Zipf's law, the n-th adapter as often as n^-skew.
    """
    if skew == 0:
        return list(islice(cycle(names), requests))
    weights = [rank**-skew for rank in range(1, len(names) + 1)]
    return Random(seed).choices(names, weights, k=requests)


def adapters_words(names: Sequence[str], *, most: int = 4) -> str:
    """Their names, or how many there are."""
    return ", ".join(names) if len(names) <= most else f"{len(names)} adapters"
