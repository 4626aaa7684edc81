"""The text of whet.yaml from a log, a checkpoint and a device; ``whet check`` takes it as it is."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import read_facts
from whet.core.flags import CPU_KV_ENV
from whet.core.format import significant
from whet.core.gpus import typical_price
from whet.core.names import name_from
from whet.core.provenance import Device, cpu_dtype, find_device
from whet.core.quote import shell_word, yaml_text
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.model import ModelFacts
from whet.core.redact import one_line
from whet.core.spec import EngineSpec, ObjectiveSpec, QualitySpec, TrafficSpec, parse_spec
from whet.core.units import GIB, human_bytes
from whet.engines.compatibility import PlannedMachine
from whet.flow.init.current import (
    PresentCommand,
    current_variant,
    read_current,
    relative,
    shown_model,
)
from whet.flow.init.options import InitOptions
from whet.flow.init.profile import LogProfile, answers_known, profile_log
from whet.flow.run.check.check import Checked, check_spec, feasible, plan_machine
from whet.flow.run.check.checkpoints import Checkpoints, open_checkpoints
from whet.flow.run.check.situation import named_checkpoints, named_head, require_time
from whet.flow.run.traffic.logged import TrafficLog, gate_tokens, read_traffic, take_sample
from whet.load.logged import MARK_TOKENS
from whet.predict.hardware import planned_device

CURRENT: Final = "current"
"""The variant that is the user's present command."""
_STEP: Final = 128
_GREEDY: Final = 0.99
_CPU_CORE_PRICE: Final = 0.0425
_LOADS: Final = {
    "cuda": ((8, 32, 128), (4, 16, 64), (1, 4, 16), (1, 4), (1,)),
    "cpu": ((1, 8, 32), (1, 4), (1,)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """Everything that the text is made of."""

    options: InitOptions
    model: str
    present: PresentCommand | None
    current: Mapping[str, Any] | None
    folder: Path
    target: ModelFacts
    device: Device
    profile: LogProfile
    concurrency: tuple[int, ...]
    tensor_parallel: int
    quality_tokens: int
    longest: int


def first_spec(options: InitOptions, file: Path) -> tuple[str, list[str]]:
    """Return the text of a spec for ``file`` and the lines to print, from log and checkpoint.

    Raises ``UsageError`` for a log that cannot be read or is too small, ``CheckpointError`` for a
    checkpoint that cannot be read, ``InfeasibleError`` where the model does not fit the device.
    """
    assert options.traffic is not None
    present = None if options.current is None else read_current(options.current)
    model, revision = options.model, None
    if model is None and present is not None:
        model, revision = present.serve.model, present.serve.revision
    model = model or "./model"
    with open_checkpoints() as checkpoints:
        folder = checkpoints.find(model, revision)
        target = read_facts(folder)
        sample, _, _ = take_sample(options.traffic.resolve(), 0)
        answers = "logged" if answers_known(sample) else "natural"
        traffic = TrafficSpec(log=options.traffic.resolve(), answers=answers)
        log = read_traffic(traffic, folder, target.max_position, None)
        name = options.device
        planned = None if name is None else plan_machine(name, None, EngineSpec())
        device = find_device() if planned is None else planned.device
        profile = profile_log(log, folder, natural=answers == "natural")
        # A held-out document is as long as the log's requests.
        quality_tokens = min(1024, max(128, math.ceil(log.p99 / _STEP) * _STEP))
        choice = _Choice(
            options=options,
            model=model,
            present=present,
            current=None
            if present is None
            else current_variant(present, target, checkpoints, file.parent.resolve()),
            folder=file.parent.resolve(),
            target=target,
            device=device,
            profile=profile,
            concurrency=(),
            tensor_parallel=1,
            quality_tokens=quality_tokens,
            longest=_longest(log, folder, quality_tokens, target),
        )
        choice, checked = _fitted(choice, checkpoints, planned)
        for ref in options.head:
            named_head(ref, target, checkpoints)
        tuple(named_checkpoints(checked.facts, checkpoints))
    head = f"Written by whet init from {log.path.name} for {_device_words(device)}."
    text = spec_text(head, _data(choice), _notes(choice))
    return text, list(_lines(choice, file))


def _longest(log: TrafficLog, tokenizer: Path, quality_tokens: int, target: ModelFacts) -> int:
    """``max_model_len``: the longest request, document or task of a run."""
    quality = QualitySpec(max_tokens=quality_tokens)
    needed = max(log.longest + MARK_TOKENS, gate_tokens(quality, log, tokenizer))
    return min(math.ceil(needed / _STEP) * _STEP, target.max_position)


def _fitted(
    choice: _Choice, checkpoints: Checkpoints, planned: PlannedMachine | None
) -> tuple[_Choice, Checked]:
    """The largest load and the fewest GPUs with which vLLM's default runs.

    Raises ``InfeasibleError`` or ``UsageError`` where it does not, or the present command does not.
    """
    counts = [1 << power for power in range(choice.device.count.bit_length())]
    tries = [(sizes, count) for count in counts for sizes in _LOADS[choice.device.kind]]
    for sizes, count in tries:
        choice = replace(choice, concurrency=sizes, tensor_parallel=count)
        spec = parse_spec(_data(choice), base=choice.folder)
        root = choice.folder / "runs" / spec.name
        checked = check_spec(spec, root, checkpoints, planned)
        bad = {problem.variant for problem in checked.problems}
        if not bad & {None, spec.baseline}:
            break
    require_time(spec, choice.device)
    feasible(checked, skip=False)
    return choice, checked


def spec_text(head: str, data: Mapping[str, object], notes: Mapping[str, str] = {}) -> str:
    """``data`` as whet.yaml with each note, by ``section.key``, above the line of its key."""
    text = f"# {one_line(head)}\n"
    for section, value in data.items():
        text += "" if section == "variants" else "\n"
        flow = None if section in ("objective", "recipes", "variants") else False
        for line in yaml_text({section: value}, flow=flow).splitlines():
            key = line.lstrip()
            if (note := notes.get(f"{section}.{key.partition(':')[0]}")) is not None:
                text += f"{line[: -len(key)]}# {note}\n"
            text += f"{line}\n"
    return text


def _data(choice: _Choice) -> dict[str, object]:
    """The sections of whet.yaml."""
    target, options, on_cpu = choice.target, choice.options, choice.device.kind == "cpu"
    model: dict[str, object] = {"target": shown_model(choice.model, choice.folder)}
    if target.commit is not None:
        model["revision"] = target.commit
    if options.draft is not None:
        model["draft"] = shown_model(options.draft, choice.folder)
    engine: dict[str, object] = {"args": _engine_args(choice)}
    quality: dict[str, object] = {"max_tokens": choice.quality_tokens}
    if choice.profile.greedy > _GREEDY:
        quality["sampled"] = False
    if on_cpu:
        engine["env"] = {CPU_KV_ENV: str(_cpu_pool_gib(choice))}
        quality |= {"max_documents": 60, "max_tasks": 48}
    log = choice.profile.traffic
    return {
        "name": name_from(Path(choice.model).name.lower(), "model"),
        "model": model,
        "hardware": _hardware(choice),
        "traffic": {
            "log": relative(log.path, choice.folder),
            "answers": "natural" if choice.profile.natural else "logged",
        },
        "load": _load(choice),
        "objective": {
            "ttft_ms": list(map(int, ObjectiveSpec().ttft_ms)),
            "recommend_ttft_ms": int(ObjectiveSpec().recommend_ttft_ms),
        },
        "engine": engine,
        "quality": quality,
        "search": _search(choice),
        **_current(choice),
    }


def _search(choice: _Choice) -> dict[str, object]:
    options = choice.options
    named = {"heads": options.head, "checkpoints": options.checkpoint}
    shown = {
        key: [shown_model(ref, choice.folder) for ref in refs]
        for key, refs in named.items()
        if refs
    }
    return {"time": options.time, **shown}


def _current(choice: _Choice) -> dict[str, object]:
    """The present command as a variant; its requests have to fit, as those of every variant."""
    if choice.current is None:
        return {}
    args = dict(choice.current.get("args", {}))
    if type(length := args.get("max_model_len")) is int and length < choice.longest:
        args["max_model_len"] = choice.longest
    if choice.tensor_parallel > 1:  # which the default needs, and the command may do without
        args.setdefault("tensor_parallel_size", 1)
    variant = {**choice.current, **({"args": args} if args else {})}
    return {"reference": CURRENT, "variants": {CURRENT: variant}}


def _notes(choice: _Choice) -> dict[str, str]:
    """Where a value of whet.yaml is from, and why a variant is worth a try."""
    rates, longest = choice.profile.rates, choice.profile.traffic.longest
    natural = choice.profile.natural
    notes = {
        "traffic.answers": "measured: the log has none" if natural else "as long as in the log",
        "load.concurrency": "in flight; the log has no times",
        "load.find": "each variant's highest rate, at the log's own gaps",
        "load.seconds": "of each trial",
        "objective.ttft_ms": "limits of the time to first token, p95, in ms; set yours",
        "objective.recommend_ttft_ms": "the one that the recommendation meets",
        "engine.max_model_len": f"the log's longest request has {longest:,} tokens",
        "engine.enforce_eager": "without minutes of compilation at each start",
        "engine.block_size": "the CPU's 128 caches long prefixes only",
        "engine.dtype": "what this CPU computes fastest",
        f"engine.{CPU_KV_ENV}": "GiB of KV cache",
        "quality.max_tokens": "of each held-out document",
        "quality.sampled": "the log is greedy",
        "search.time": "for everything: quantizing, the search, checks of answers, confirmation",
        "reference.reference": "what savings are against",
        f"variants.{CURRENT}": "your present command",
    }
    if rates is not None:
        mean = significant(rates.mean, 3)
        notes["load.demand_rps"] = f"the log's busiest five minutes; {mean} on average"
    return notes


def _hardware(choice: _Choice) -> dict[str, object]:
    price, source = price_of(choice.device, choice.tensor_parallel)
    return {"price_usd_per_hour": price, "price_source": source}


def price_of(device: Device, count: int) -> tuple[float, str]:
    """Return dollars an hour for ``count`` devices, or for a CPU's cores, and where from."""
    if device.kind == "cpu":
        price, source = _CPU_CORE_PRICE * (os.cpu_count() or 1), "a cloud machine of as many cores"
    else:
        one = typical_price(device.name)
        price = (one or 1.0) * count
        source = f"{device.name} on demand, 2026" if one else "not known"
    return rounded(price), f"{source}; put your own"


def planned_price(name: str) -> tuple[float, str]:
    """Return dollars an hour for the GPUs that ``name`` says, and where from."""
    device, _ = planned_device(name)
    return price_of(device, device.count)


def _load(choice: _Choice) -> dict[str, object]:
    rates = choice.profile.rates
    if rates is None:
        return {"concurrency": list(choice.concurrency)}
    seconds = {"seconds": 20} if choice.device.kind == "cpu" else {}
    return {"find": "max_rate", "demand_rps": rounded(rates.busiest), **seconds}


def _engine_args(choice: _Choice) -> dict[str, object]:
    args: dict[str, object] = {"max_model_len": choice.longest}
    if choice.tensor_parallel > 1:
        args["tensor_parallel_size"] = choice.tensor_parallel
    if choice.device.kind == "cpu":
        args |= {"max_num_seqs": 2 * max(choice.concurrency), "enforce_eager": True}
        args |= {"block_size": 32, "dtype": cpu_dtype()}
    return args


def rounded(figure: float) -> float:
    """Three significant digits."""
    return float(f"{figure:.3g}")


def _cpu_pool_gib(choice: _Choice) -> int:
    """Room for the largest load of long requests, and for one of ``max_model_len``."""
    target, width = choice.target, 2 if cpu_dtype() == "float32" else 1
    many = max(choice.concurrency) * target.kv_bytes(choice.profile.traffic.p99)
    return math.ceil(max(many, 2 * target.kv_bytes(choice.longest)) * width / GIB)


def _lines(choice: _Choice, file: Path) -> Iterator[str]:
    """What is printed."""
    target = choice.target
    yield from choice.profile.lines()
    yield from (f"  warning: {doubt}" for doubt in choice.profile.traffic.doubts)
    yield (
        f"{choice.model}: {_count(target.parameters)} parameters, "
        f"{human_bytes(target.weight_bytes)}, context {target.max_position:,}; "
        f"{_device_words(choice.device)}"
    )
    if target.stored.scheme not in UNQUANTIZED:
        yield (
            f"  it is quantized already ({target.stored.scheme}): measured as stored; moves of "
            "weights need the 16-bit checkpoint (--model)"
        )
    beaten = "vLLM's default" if choice.present is None else "your present command"
    yield f"  {choice.options.time} of search from vLLM's default on; savings are against {beaten}"
    length = (choice.current or {}).get("args", {}).get("max_model_len")
    if type(length) is int and length < choice.longest:
        yield (
            f"  max_model_len {length:,} of the present command is raised to {choice.longest:,}, "
            "which the requests and the checks of answers need"
        )
    if choice.present is not None and choice.present.left_out:
        yield f"  left out of the present command: {', '.join(choice.present.left_out)}"
    unknown = "when requests come (it has no times)"
    if choice.profile.rates is not None:
        unknown = "whether it holds all of your traffic (load.demand_rps)"
    yield (
        f"Not in the log: your latency limits (objective); your price (hardware); {unknown}. "
        f"Set them in {file}."
    )
    word, device = shell_word(str(file)), choice.options.device
    there = "" if device is None else f" --device {shell_word(device)}"
    yield f"Wrote {word}. Next: whet check {word}{there}, then: whet run {word}"


def _count(parameters: int) -> str:
    """``7.62 B`` or ``11.0 M``."""
    unit, name = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{significant(parameters / unit, 3)} {name}"


def _device_words(device: Device) -> str:
    count = f"{device.count} × " if device.count > 1 else ""
    return f"{count}{device.name}, {human_bytes(device.memory_bytes)}"
