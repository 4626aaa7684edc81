"""The best predicted configurations as a whet.yaml that measures them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from whet.core.errors import InfeasibleError
from whet.core.names import name_from
from whet.core.spec import SIXTEEN_BIT
from whet.flow.init.spec import rounded, shown_model, spec_text
from whet.flow.plan.plan import Plan
from whet.metrics.objective_text import parse_objective
from whet.predict.plan.evaluate import Candidate, Prediction

_MOST: Final = 4
_LONG: Final = 1024
_NAMES: Final = {SIXTEEN_BIT: "fp16", "FP8_DYNAMIC": "fp8"}


def planned_spec(plan: Plan, model: str, file: Path) -> str:
    """Up to four configurations of the GPUs that the best one takes, and the 16-bit baseline.

    Left out: speculation, whose head a plan does not know. ``InfeasibleError`` where nothing else
    meets the objective.
    """
    chosen = _chosen(plan)
    first = chosen[0].candidate
    variants = {_name(each.candidate): _variant(each.candidate) for each in chosen}
    recipes = {
        name: {"scheme": name.upper() if name != "fp8" else "FP8_DYNAMIC"}
        for variant in variants.values()
        if (name := variant.get("weights")) is not None
    }
    length = dict(first.variant.engine_args)["max_model_len"]
    price = first.price * first.devices
    data: dict[str, Any] = {
        "name": name_from(Path(model).name, "plan"),
        "model": {"target": shown_model(model, file.parent.resolve())},
        "hardware": {
            "tier": f"{first.devices}x {first.gpu}",
            "price_usd_per_hour": rounded(price),
            "price_source": "as planned; put your own",
        },
        "engine": {"args": {"max_model_len": length}},
        "workload": _workload(plan),
        "load": {"concurrency": sorted({each.in_flight for each in chosen} | set(plan.sizes))},
        "objective": _objective(plan.objective),
        "recipes": recipes,
        "baseline": next(iter(variants)),
        "variants": variants,
    }
    head = f"Written by whet plan: predicted, not measured, on {first.devices} × {first.gpu}."
    own = "built-in texts: give traffic: log.jsonl for your own prompts"
    return spec_text(head, data, {"workload.workload": own})


def _chosen(plan: Plan) -> list[Prediction]:
    """The baseline first; all on the same GPUs, each configuration once."""
    own = [each for each in plan.predictions if each.candidate.speculation is None and each.bound]
    best = [each for each in (*plan.front, *own) if each.candidate.speculation is None]
    best = [each for each in best if plan.sizes or each.missed is None]
    if not best:
        raise InfeasibleError(
            "--spec: only configurations with --speculation meet the objective, and a plan does "
            "not know their head",
            fix="plan without it, or allow more",
        )
    host = (best[0].candidate.gpu, best[0].candidate.devices)

    def here(each: Prediction) -> bool:
        return (each.candidate.gpu, each.candidate.devices) == host

    unique: dict[str, Prediction] = {}
    for each in filter(here, best):
        unique.setdefault(_name(each.candidate), each)
    rows = list(unique.values())[:_MOST]
    plain = [each for each in own if here(each) and each.candidate.variant.weights == SIXTEEN_BIT]
    baseline = next((each for each in (*rows, *plain) if each in plain), rows[0])
    return [baseline, *(each for each in rows if each.candidate != baseline.candidate)]


def _name(candidate: Candidate) -> str:
    """``fp8-tp2-dp4``."""
    weights = candidate.variant.weights
    name = "stored" if weights.startswith("as stored") else _NAMES.get(weights, weights.lower())
    words = [name, *candidate.parallel.text.lower().split("×")]
    cache = dict(candidate.variant.engine_args).get("kv_cache_dtype")
    return "-".join([*words, *([f"kv-{cache}"] if cache else [])])


def _variant(candidate: Candidate) -> dict[str, Any]:
    """As whet.yaml writes it; the length is the engine's, for all."""
    weights = _name(candidate).partition("-")[0]
    args = dict(candidate.variant.engine_args)
    args.pop("max_model_len")
    return {
        **({"weights": weights} if weights not in ("fp16", "stored") else {}),
        "prefix_cache": True,
        **({"args": args} if args else {}),
    }


def _workload(plan: Plan) -> dict[str, Any]:
    """The nearest that the built-in texts make; their long system prompt has 1,024 tokens."""
    requests = plan.traffic.requests
    shared = sum(max(each.shared, each.cached) > 0 for each in requests) / len(requests)
    long = sum(each.prompt for each in requests) / len(requests) > _LONG
    return {
        "shared_prefix_share": round(shared, 2),
        "long_system_share": float(long),
        "max_output_tokens": max(each.output for each in requests),
    }


def _objective(text: str) -> dict[str, Any]:
    """Limits of the p95; whet.yaml has no other statistic."""

    def limits() -> Iterator[tuple[str, Any]]:
        for each in parse_objective(text):
            if each.metric == "ttft":
                yield "ttft_ms", [each.limit]
                yield "recommend_ttft_ms", each.limit
            elif each.metric in ("tpot", "e2e"):
                yield f"{each.metric}_ms", each.limit

    return dict(limits())
