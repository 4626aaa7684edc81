"""The candidates that the options of ``whet plan`` span."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.numbers import above_zero
from whet.core.records.engine import Scalar, Variant
from whet.core.records.model import ModelFacts
from whet.core.spec import SIXTEEN_BIT, RecipeSpec
from whet.flow.plan.options import PlanOptions
from whet.predict import predict_checkpoint
from whet.predict.advice import GRAPHS_OF_EXPERTS
from whet.predict.hardware import CUDA, planned_device
from whet.predict.plan.evaluate import Candidate
from whet.predict.plan.parallelism import Parallelism, parse_parallel, usual_layouts
from whet.predict.plan.traffic import PlannedTraffic
from whet.predict.settings import LARGEST_GRAPH

_FP8_FROM: Final = (8, 9)
_LENGTH_STEP: Final = 1024
_WEIGHTS: Final = f"{SIXTEEN_BIT},FP8_DYNAMIC,W8A8,W4A16"


def candidates_of(
    target: ModelFacts, traffic: PlannedTraffic, options: PlanOptions
) -> Iterator[Candidate]:
    prices = _prices(options.prices)
    stepped = _LENGTH_STEP * math.ceil(traffic.longest / _LENGTH_STEP)
    most = max(traffic.longest, min(stepped, target.max_position))
    length = options.max_model_len or most
    if length > target.max_position:
        raise UsageError(
            f"requests of {length:,} tokens do not fit the model's {target.max_position:,}",
            fix="give shorter ones, or --max-model-len",
        )
    forms = _forms(target, options.weights or _WEIGHTS)
    choices = itertools.product(
        _layouts(options),
        forms.items(),
        [each.strip() for each in options.kv_cache.split(",")],
    )
    for (gpu, parallel), (weights, stored), kv_cache in choices:
        unusual = options.weights is None and not _usual(stored.stored.scheme, gpu)
        if unusual or not parallel.suits(stored):
            continue
        name = weights if kv_cache == "auto" else f"{weights}, {kv_cache} KV"
        args: tuple[tuple[str, Scalar], ...] = (("max_model_len", length), *parallel.args)
        if stored.experts is not None and traffic.longest > LARGEST_GRAPH:
            args = (*args, *GRAPHS_OF_EXPERTS)
        if kv_cache != "auto":
            args = (*args, ("kv_cache_dtype", kv_cache))
        yield Candidate(
            gpu=gpu,
            parallel=parallel,
            variant=Variant(
                name=name,
                weights=weights,
                scheme=stored.stored.scheme,
                model_path=target.path,
                speculation=None,
                prefix_cache=True,
                engine_args=args,
            ),
            stored=stored,
            price=prices.get(gpu, CUDA[gpu].price),
        )


def _usual(scheme: str, gpu: str) -> bool:
    """8 bits are FP8 where the GPU multiplies them, else INT8."""
    fp8 = CUDA[gpu].capability >= _FP8_FROM
    return not (scheme == "FP8" and not fp8) and not (scheme == "W8A8-INT8" and fp8)


def _forms(target: ModelFacts, text: str) -> Mapping[str, ModelFacts]:
    """The facts of the weights, by precision."""
    if target.stored.scheme not in (SIXTEEN_BIT, "32bit"):
        return {f"as stored ({target.stored.scheme})": target}
    forms: dict[str, ModelFacts] = {}
    for name in (each.strip() for each in text.split(",")):
        if name == SIXTEEN_BIT:
            forms[name] = target
            continue
        try:
            recipe = RecipeSpec.model_validate({"method": "rtn", "scheme": name})
        except ValueError as error:
            raise UsageError(
                f"--weights {name!r} is not a precision", fix="see docs/quant.md"
            ) from error
        forms[name] = predict_checkpoint(target, recipe, Path(target.path))
    return forms


def _layouts(options: PlanOptions) -> Iterator[tuple[str, Parallelism]]:
    """Each GPU with its layouts: those of ``--parallel``, or of the count that is given."""
    parallel = None if options.parallel is None else parse_parallel(options.parallel)
    for text in options.gpus.split(",") if options.gpus else CUDA:
        device, _ = planned_device(text)
        count = device.count if text.strip()[0].isdigit() else None
        chosen = list(usual_layouts(count)) if parallel is None else parallel
        for each in chosen:
            if count is not None and each.devices > count:
                raise UsageError(
                    f"--parallel: {each.text} needs {each.devices} GPUs and --gpus has {count} × "
                    f"{device.name}",
                    fix="name fewer, or more GPUs",
                )
            yield device.name, each


def _prices(text: str | None) -> dict[str, float]:
    prices: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        try:
            prices[planned_device(name)[0].name] = above_zero(value)
        except ValueError as error:
            raise UsageError(f'--prices {part!r}: write "L4=0.5", US$ an hour above 0') from error
    return prices
