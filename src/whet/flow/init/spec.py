"""The text of whet.yaml from a log, a checkpoint and a device; ``whet check`` takes it as it is."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from whet.checkpoint import read_facts
from whet.checkpoint.encoder import load_encoder
from whet.core.flags import CPU_KV_ENV
from whet.core.format import plural, significant
from whet.core.prices import typical_price
from whet.core.provenance import Device, cpu_dtype, find_device
from whet.core.quote import shell_word, yaml_scalar
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.model import ModelFacts
from whet.core.redact import one_line
from whet.core.spec import EngineSpec, QualitySpec, Spec, TrafficSpec, parse_spec
from whet.core.units import GIB, human_bytes
from whet.engines.machine import find_capability
from whet.engines.planned import PlannedMachine
from whet.flow.init.options import InitOptions
from whet.flow.init.profile import LogProfile, answers_known, name_of, profile_log
from whet.flow.init.variants import Proposal, propose
from whet.flow.run.check.check import Checked, check_spec, feasible
from whet.flow.run.check.checkpoints import Checkpoints, open_checkpoints
from whet.flow.run.check.planned import plan_machine
from whet.flow.run.traffic.logged import TrafficLog, gate_tokens, read_traffic, take_sample
from whet.load.logged import MARK_TOKENS
from whet.quant.suitability import settings_text
from whet.requests.sample import Part

_STEP: Final = 128
_GREEDY: Final = 0.99
_CPU_CORE_PRICE: Final = 0.0425
_LOADS: Final = {
    "cuda": ((8, 32, 128), (4, 16, 64), (1, 4, 16), (1, 4), (1,)),
    "cpu": ((1, 8, 32), (1, 4), (1,)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSpec:
    """A spec that can run, as text, and what is said about it."""

    text: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """Everything that the text is made of."""

    options: InitOptions
    folder: Path
    target: ModelFacts
    device: Device
    profile: LogProfile
    answers: str
    proposals: tuple[Proposal, ...]
    concurrency: tuple[int, ...]
    tensor_parallel: int
    quality_tokens: int
    longest: int


def first_spec(options: InitOptions, file: Path) -> FirstSpec:
    """Read the log and the checkpoint's small files, and propose a spec to be written to ``file``.

    Raises ``UsageError`` for a log that cannot be read or is too small, ``CheckpointError`` for a
    checkpoint that cannot be read, ``InfeasibleError`` where the model does not fit the device.
    """
    assert options.traffic is not None
    with open_checkpoints() as checkpoints:
        folder = checkpoints.find(options.model)
        target = read_facts(folder)
        sample, _, _ = take_sample(options.traffic.resolve(), 0)
        answers = "logged" if answers_known(sample) else "natural"
        traffic = TrafficSpec(log=options.traffic.resolve(), answers=answers)
        log = read_traffic(traffic, folder, target.max_position, None)
        name = options.device
        planned = None if name is None else plan_machine(name, None, EngineSpec())
        device = find_device() if planned is None else planned.device
        capability = find_capability() if planned is None else planned.capability
        profile = profile_log(log, load_encoder(folder), natural=answers == "natural")
        quality_tokens = _quality_tokens(log)
        choice = _Choice(
            options=options,
            folder=file.parent.resolve(),
            target=target,
            device=device,
            profile=profile,
            answers=answers,
            proposals=tuple(
                propose(target, device, capability, profile, draft=options.draft is not None)
            ),
            concurrency=(),
            tensor_parallel=1,
            quality_tokens=quality_tokens,
            longest=_longest(log, folder, quality_tokens, target),
        )
        choice, checked = _fitted(choice, checkpoints, planned)
    text = "\n".join(_text(choice)) + "\n"
    return FirstSpec(text=text, lines=tuple(_lines(choice, checked, file)))


def _quality_tokens(log: TrafficLog) -> int:
    """Tokens of a held-out document: as the log's requests have, at most 1,024."""
    return min(1024, max(128, math.ceil(log.p99 / _STEP) * _STEP))


def _longest(log: TrafficLog, tokenizer: Path, quality_tokens: int, target: ModelFacts) -> int:
    """``max_model_len``: the longest request, document or task of a run."""
    quality = QualitySpec(max_tokens=quality_tokens)
    needed = max(log.longest + MARK_TOKENS, gate_tokens(quality, log, tokenizer))
    return min(math.ceil(needed / _STEP) * _STEP, target.max_position)


def _fitted(
    choice: _Choice, checkpoints: Checkpoints, planned: PlannedMachine | None
) -> tuple[_Choice, Checked]:
    """The largest load and the fewest GPUs with which the baseline runs; what cannot run is out."""
    counts = [1 << power for power in range(choice.device.count.bit_length())]
    tries = [(sizes, count) for count in counts for sizes in _LOADS[choice.device.kind]]
    for sizes, count in tries:
        choice = replace(choice, concurrency=sizes, tensor_parallel=count)
        spec = _spec(choice)
        root = choice.folder / "runs" / spec.name
        checked = check_spec(spec, root, checkpoints, planned)
        bad = {problem.variant for problem in checked.problems}
        if not bad & {None, spec.baseline}:
            good = [each for each in choice.proposals if each.name not in bad]
            return replace(choice, proposals=tuple(good)), checked
    feasible(checked, skip=True)
    raise AssertionError("feasible raises for a baseline that cannot run")


def _spec(choice: _Choice) -> Spec:
    return parse_spec(yaml.safe_load("\n".join(_text(choice))), base=choice.folder)


def _text(choice: _Choice) -> Iterator[str]:
    """The lines of whet.yaml."""
    target, device, profile = choice.target, choice.device, choice.profile
    log = profile.traffic
    about = f"Written by whet init from {log.path.name} for {_device_words(device)}."
    yield f"# {one_line(about)}"
    yield f"name: {yaml_scalar(name_of(choice.options.model))}"
    yield ""
    yield "model:"
    yield f"  target: {yaml_scalar(_shown(choice.options.model, choice.folder))}"
    if target.commit is not None:
        yield f"  revision: {yaml_scalar(target.commit)}"
    if choice.options.draft is not None:
        yield f"  draft: {yaml_scalar(_shown(choice.options.draft, choice.folder))}"
    yield ""
    yield from _hardware(choice)
    yield ""
    yield "traffic:"
    yield f"  log: {yaml_scalar(_relative(log.path, choice.folder))}"
    words = "as long as in the log" if choice.answers == "logged" else "measured: the log has none"
    yield f"  answers: {choice.answers}   # {words}"
    yield ""
    yield from _load(choice)
    yield ""
    yield "engine:"
    yield "  args:"
    yield from (f"    {line}" for line in _engine_args(choice))
    if device.kind == "cpu":
        yield "  env:"
        yield f'    {CPU_KV_ENV}: "{_cpu_pool_gib(choice)}"   # GiB of KV cache'
    yield ""
    yield "quality:"
    yield f"  max_tokens: {choice.quality_tokens}   # of each held-out document"
    if profile.greedy > _GREEDY:
        yield "  sampled: false   # the log is greedy"
    if device.kind == "cpu":
        yield "  max_documents: 60"
        yield "  max_tasks: 48"
    yield ""
    recipes = {each.recipe: each.made for each in choice.proposals if each.made is not None}
    samples = min(512, max(_documents(log, "calibration"), 32))
    yield "recipes:" if recipes else "recipes: {}"
    for name, recipe in recipes.items():
        yield f"  {name}: {{{settings_text(recipe)}, calibration: {{samples: {samples}}}}}"
    yield ""
    yield f"baseline: {choice.proposals[0].name}"
    yield "variants:"
    for each in choice.proposals:
        yield f"  # {each.why}"
        yield f"  {each.name}: {each.value}"


def _hardware(choice: _Choice) -> Iterator[str]:
    device = choice.device
    yield "hardware:"
    if device.kind == "cpu":
        price, source = _CPU_CORE_PRICE * (os.cpu_count() or 1), "a cloud machine of as many cores"
    else:
        one = typical_price(device.name)
        price = (one or 1.0) * choice.tensor_parallel
        source = f"{device.name} on demand, 2026" if one else "not known"
    yield f"  price_usd_per_hour: {significant(price, 3)}"
    yield f"  price_source: {yaml_scalar(f'{source}; put your own')}"


def _load(choice: _Choice) -> Iterator[str]:
    rates = choice.profile.rates
    yield "load:"
    if rates is None:
        yield f"  concurrency: {list(choice.concurrency)}   # in flight; the log has no times"
        return
    yield "  find: max_rate     # each variant's highest rate, at the log's own gaps"
    yield (
        f"  demand_rps: {significant(rates.busiest, 3)}   # the log's busiest five minutes; "
        f"{significant(rates.mean, 3)} on average"
    )
    if choice.device.kind == "cpu":
        yield "  seconds: 20        # of each trial"


def _engine_args(choice: _Choice) -> Iterator[str]:
    longest = choice.profile.traffic.longest
    yield f"max_model_len: {choice.longest}   # the log's longest request has {longest:,} tokens"
    if choice.tensor_parallel > 1:
        yield f"tensor_parallel_size: {choice.tensor_parallel}"
    if choice.device.kind == "cpu":
        yield f"max_num_seqs: {2 * max(choice.concurrency)}"
        yield "enforce_eager: true   # without minutes of compilation at each start"
        yield "block_size: 32        # the CPU's 128 caches long prefixes only"
        yield f"dtype: {cpu_dtype()}           # what this CPU computes fastest"


def _cpu_pool_gib(choice: _Choice) -> int:
    """Room for the largest load of long requests, and for one of ``max_model_len``."""
    target, width = choice.target, 2 if cpu_dtype() == "float32" else 1
    many = max(choice.concurrency) * target.kv_bytes(choice.profile.traffic.p99)
    return math.ceil(max(many, 2 * target.kv_bytes(choice.longest)) * width / GIB)


def _documents(log: TrafficLog, part: Part) -> int:
    return len({each.group for each in log.sample.part(part)})


def _lines(choice: _Choice, checked: Checked, file: Path) -> Iterator[str]:
    """What is printed."""
    target = choice.target
    yield from choice.profile.lines()
    yield from (f"  warning: {doubt}" for doubt in choice.profile.traffic.doubts)
    yield (
        f"{choice.options.model}: {_count(target.parameters)} parameters, "
        f"{human_bytes(target.weight_bytes)}, context {target.max_position:,}; "
        f"{_device_words(choice.device)}"
    )
    if target.stored.scheme not in UNQUANTIZED:
        yield (
            f"  it is quantized already ({target.stored.scheme}): measured as stored, without "
            "recipes, which need a 16-bit checkpoint"
        )
    names = ", ".join(each.name for each in choice.proposals)
    yield f"  {plural(len(choice.proposals), 'variant')}: {names}"
    dropped = {problem.variant: problem.message for problem in checked.problems}
    for name, message in list(dropped.items())[:3]:
        yield f"  not {name}: {message}"
    yield f"Not in the log: {'; '.join(choice.profile.unknown())}. Set them in {file}."
    word = shell_word(str(file))
    yield f"Wrote {word}. Next: whet check {word}, then: whet run {word}"


def _count(parameters: int) -> str:
    """``7.62 B`` or ``11.0 M``."""
    unit, name = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{significant(parameters / unit, 3)} {name}"


def _device_words(device: Device) -> str:
    count = f"{device.count} × " if device.count > 1 else ""
    return f"{count}{device.name}, {human_bytes(device.memory_bytes)}"


def _shown(ref: str, folder: Path) -> str:
    """A checkpoint as the file names it: a path below its folder, or a hub id."""
    return _relative(Path(ref), folder) if Path(ref).expanduser().is_dir() else ref


def _relative(path: Path, folder: Path) -> str:
    shown = os.path.relpath(path.expanduser().resolve(), folder)
    return shown if shown.startswith(".") else f"./{shown}"
