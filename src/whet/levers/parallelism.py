"""Tensor, pipeline, data and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim
from whet.levers.base import Lever, Outcome, Start, claim_per_start
from whet.levers.settings import PARALLEL, same_value


class Parallelism(Lever):
    """``tensor_parallel_size`` and the others; a size of 1 does not count."""

    name = "parallelism"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where more than one device is requested."""
        if sizes := _sizes(resolved.variant):
            yield claim_per_start(
                "parallelism",
                ", ".join(f"{name}={value}" for name, value in sizes.items()),
                "the layers' tp_size, the ranks in the log, the engines in /metrics and "
                "/server_info",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Sizes as the layers, the ranks and the metrics show them, not only as resolved."""
        reported = {
            "tensor_parallel_size": _text(start.facts.tensor_parallel),
            "data_parallel_size": _text(start.declared.engines),
            "pipeline_parallel_size": start.declared.setting(
                "parallel_config.pipeline_parallel_size"
            ),
            "enable_expert_parallel": _text(start.facts.expert_parallel),
        }
        sizes = _sizes(start.variant)
        known = {name: value for name in sizes if (value := reported[name]) is not None}
        quotes = tuple(f"{name}: {value}" for name, value in known.items())
        wrong = [
            f"{name} is {value}"
            for name, value in known.items()
            if not same_value(sizes[name], value)
        ]
        if wrong:
            return "contradicted", "; ".join(wrong), quotes
        missing = [name for name in sizes if name not in known]
        if missing:
            return "unproved", f"no source reports {', '.join(missing)}", quotes
        return "proved", "; ".join(quotes), quotes


def _sizes(variant: Variant) -> dict[str, Scalar]:
    args = plain_args(variant)
    given = ((name, args.get(name, False)) for name in PARALLEL)
    return {name: each for name, each in given if each is True or each not in (1, "1", False)}


def _text(value: int | bool | None) -> str | None:
    return None if value is None else str(value)
