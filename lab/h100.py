"""The testbed on one GPU: static batches with transformers, then every variant on vLLM.

    python -m lab.h100 run WORK          # all steps; goes on where a stopped one left off
    python -m lab.h100 run WORK --steps testbed,texts,checkpoints
    python -m lab.h100 pack WORK PARTS   # what was measured, in files of at most 15 MB
    python -m lab.h100 unpack PARTS WORK
    python -m lab.h100 table WORK/runs/NAME --static WORK/static.csv --out results/NAME

WORK holds the spec, the testbed, the prompts, the runs and ``static.csv``. On a bare machine
``unpack`` what was packed on the last one and give ``run`` again: the testbed and the
checkpoints are made anew by the same recipes, and only what is missing is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final
from unittest import mock

import yaml
from safetensors.torch import load_file, save_file

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
from lab.h100_profile import PROFILER, Where, profile_sizes
from lab.h100_shares import keep_shares, measure_shares
from lab.h100_table import HEAD_8BIT, StaticRow, keep_results, static_csv, static_rows
from lab.sglang_head import SUFFIX, sglang_head
from whet.core.spec import Spec, load_spec
from whet.core.spec.variants import expand_sweeps
from whet.core.store import write_atomic

SPEC: Final = Path(__file__).with_suffix(".yaml")
STEPS: Final = ("testbed", "texts", "checkpoints", "static", "variants")
SYSTEM_TOKENS: Final = 1024
USER_TOKENS: Final = 85
"""The built-in user turns that are at least so long: with the ticket's number and the
template a request has about 128 tokens of its own."""
STATIC_SIZES: Final = (1, 4, 8, 16, 32, 64, 128, 256)
PART_BYTES: Final = 15_000_000
_PART: Final = "part_"
_WEIGHTS: Final = ("checkpoints", "testbed", "drafts", "traces")
_STATIC_BATCHES: Final = 2
_PROFILED_PROMPTS: Final = 2000
HEAD_SHARED: Final = f"{HEAD_8BIT}-shared"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and dispatch."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    run = kinds.add_parser("run")
    run.add_argument("work", type=Path)
    run.add_argument("--steps", default=",".join(STEPS))
    run.add_argument("--spec", type=Path, default=SPEC)
    run.add_argument("--variants", help="these alone, for a sitting that has no time for all")
    run.add_argument("--set", nargs="*", default=[], help="KEY.KEY=YAML in place of the spec's")
    run.add_argument("--profile", default="", help="VARIANT=1,32,256 and more after a semicolon")
    run.add_argument(
        "--shares", default="", help="VARIANT=1,32,256 for prefix shares of 0 and 50%%"
    )
    run.add_argument("--shape", default="7b")
    run.add_argument("--draft", default="1b")
    one = kinds.add_parser("checkpoint")
    one.add_argument("work", type=Path)
    one.add_argument("recipe")
    packed = kinds.add_parser("pack")
    packed.add_argument("work", type=Path)
    packed.add_argument("parts", type=Path)
    unpacked = kinds.add_parser("unpack")
    unpacked.add_argument("parts", type=Path)
    unpacked.add_argument("work", type=Path)
    made = kinds.add_parser("table")
    made.add_argument("run", type=Path)
    made.add_argument("--static", type=Path)
    made.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    if options.what == "run":
        _run(options)
    elif options.what == "checkpoint":
        make_checkpoint(options.work, options.recipe)
    elif options.what == "pack":
        pack(options.work, options.parts)
    elif options.what == "unpack":
        unpack(options.parts, options.work)
    else:
        keep_results(options.run, options.static, options.out)


def _run(options: argparse.Namespace) -> None:
    work: Path = options.work.resolve()
    steps = options.steps.split(",")
    if unknown := set(steps) - set(STEPS):
        sys.exit(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    work.mkdir(parents=True, exist_ok=True)
    write_atomic(work / "whet.yaml", chosen(options.spec, options.variants, options.set).encode())
    for step in (step for step in STEPS if step in steps):
        began = time.monotonic()
        if step == "testbed" and not (work / "testbed").exists():
            _whet("demo", "testbed", "--shape", options.shape, "--draft", options.draft, "--eagle3",
                  str(work / "testbed"))  # fmt: skip
        elif step == "texts":
            write_texts(workload_texts(work), work / "testbed" / "target")
        elif step == "checkpoints":
            make_checkpoints(work)
        elif step == "static":
            measure_static(work, STATIC_SIZES)
        elif step == "variants":
            measure_variants(work, _sizes(options.profile), _sizes(options.shares))
        print(f"step {step}: {time.monotonic() - began:.1f} s", flush=True)


def chosen(spec: Path, variants: str | None, changes: Sequence[str] = ()) -> str:
    """The spec's text, with only the variants that are named, if any are, and ``changes``."""
    text = spec.read_text(encoding="utf-8")
    if variants is None and not changes:
        return text
    data = yaml.safe_load(text)
    for change in changes:
        keys, _, value = change.partition("=")
        *sections, last = keys.split(".")
        part = data
        for section in sections:
            part = part[section]
        part[last] = yaml.safe_load(value)
    data["variants"] = expand_sweeps(data["variants"])
    names = list(data["variants"]) if variants is None else variants.split(",")
    if unknown := set(names) - set(data["variants"]):
        sys.exit(
            f"no variant {', '.join(sorted(unknown))}; there are {', '.join(data['variants'])}"
        )
    variants = {name: item for name, item in data["variants"].items() if name in names}
    groups = [[n for n in group if n in variants] for group in data["load"].get("together", [])]
    load = {**data["load"], "together": [group for group in groups if len(group) > 1]}
    return str(yaml.safe_dump({**data, "load": load, "variants": variants}, sort_keys=False))


def pack(work: Path, parts: Path, *, part_bytes: int = PART_BYTES) -> list[Path]:
    """Everything in ``work`` but weights into ``parts/part_00`` and on, each small enough to carry.

    Every call writes all that there is, so that the newest one alone is needed.
    """
    parts.mkdir(parents=True, exist_ok=True)
    for old in parts.glob(f"{_PART}*"):
        old.unlink()
    left_out = [f"--exclude={name}" for name in (*_WEIGHTS, "*.safetensors")]
    tar = subprocess.Popen(["tar", "-C", work, *left_out, "-cf", "-", "."], stdout=subprocess.PIPE)
    xz = subprocess.Popen(["xz", "-T0", "-4"], stdin=tar.stdout, stdout=subprocess.PIPE)
    assert tar.stdout is not None
    tar.stdout.close()
    split = ["split", "-d", f"--bytes={part_bytes}", "-", str(parts / _PART)]
    subprocess.run(split, stdin=xz.stdout, check=True)
    if tar.wait() or xz.wait():
        sys.exit(f"{work} could not be packed; the lines above say why")
    return sorted(parts.glob(f"{_PART}*"))


def unpack(parts: Path, work: Path) -> None:
    """Put back what ``pack`` wrote."""
    files = sorted(parts.glob(f"{_PART}*"))
    if not files:
        sys.exit(f"{parts} has no {_PART}00; give the folder that pack wrote")
    work.mkdir(parents=True, exist_ok=True)
    tar = subprocess.Popen(["tar", "-C", work, "-xJf", "-"], stdin=subprocess.PIPE)
    assert tar.stdin is not None
    with tar.stdin:
        for part in files:
            tar.stdin.write(part.read_bytes())
    if tar.wait():
        sys.exit(f"the parts in {parts} are not whole; bring all of them")


def _whet(*words: str) -> None:
    # A process of its own: what it holds on the device is free again when it ends.
    subprocess.run([sys.executable, "-m", "whet", *words], check=True)


def measure_variants(work: Path, profiles: Mapping[str, str], shares: Mapping[str, str]) -> None:
    """Run ``whet run``. Before they stop, measure the servers of ``shares`` with smaller prefix
    shares and profile those of ``profiles``, each at the batch sizes given there.
    """
    from whet.cli.options import OutputOptions
    from whet.cli.run.run import execute
    from whet.core.errors import WhetError
    from whet.engines import get_engine
    from whet.flow.run.options import RunOptions

    spec, root = _spec(work)
    engines: dict[str, Any] = {each.name: get_engine(each.name) for each in spec.engines_used}
    if profiles or shares:
        write_prompts(work)
        own = engines[spec.engine.name]
        engines[spec.engine.name] = watching(own, work, profiles=profiles, shares=shares)
    with mock.patch("whet.flow.run.preflight.get_engine", engines.__getitem__):
        try:
            execute(
                spec,
                root,
                options=RunOptions(resume=True, skip_infeasible=True),
                output=OutputOptions(),
                source=(work / "whet.yaml").read_bytes(),
            )
        except WhetError as error:
            print(f"the run stopped: {error}", flush=True)


def watching(
    engine: Any, work: Path, *, profiles: Mapping[str, str], shares: Mapping[str, str]
) -> Any:
    """``engine``, whose servers are asked more before they stop: ``{variant: "1,32,256"}``."""
    one_at_a_time, (spec, _) = Lock(), _spec(work)

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        @contextlib.contextmanager
        def serve(self, resolved: Any, **kwargs: Any) -> Iterator[Any]:
            name = resolved.variant.name
            traces = work / "traces" / name
            if name in profiles:  # costs nothing until it is switched on
                options = json.dumps({**PROFILER, "torch_profiler_dir": str(traces)})
                argv = (*resolved.argv, "--profiler-config", options)
                resolved = replace(resolved, argv=argv)
            with engine.serve(resolved, **kwargs) as server:
                yield server
                with one_at_a_time:
                    try:
                        if name in shares:
                            texts = workload_texts(work)
                            rows = measure_shares(server, spec, texts, name, shares[name])
                            keep_shares(work / "shares.csv", rows)
                        if name in profiles:
                            where = Where(
                                traces=traces,
                                prompts=work / "prompts.jsonl",
                                out=work / "profile" / name,
                                pid=server.start.pid,
                            )
                            profile_sizes(server.base_url, where, profiles[name])
                    except Exception as error:  # a run does not fail for want of these
                        print(f"nothing more of {name}: {error!r}", flush=True)

    return Watching()


def _sizes(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.split(";") if part)


def write_prompts(work: Path) -> None:
    """Prompts of the run's own kind as token ids, for the profiler."""
    from whet.load import Draw, build_workload

    spec, _ = _spec(work)
    draw = Draw(requests=_PROFILED_PROMPTS, batch_size=1, trial=9, block_size=16)
    target = Path(spec.model.target)
    workload = build_workload(workload_texts(work), target, spec.workload, draw=draw)
    rows = (json.dumps({"ids": list(request.prompt_token_ids)}) for request in workload.requests)
    write_atomic(work / "prompts.jsonl", "".join(f"{row}\n" for row in rows).encode())


def workload_texts(work: Path) -> Path:
    """The texts that the run's requests are generated from."""
    _, root = _spec(work)
    return root / "inputs" / "workload.jsonl"


def write_texts(path: Path, tokenizer: Path) -> None:
    """Write the built-in texts beside a run, with one long system prompt and longer user turns.

    The system prompt is the first long one with articles of the others' catalogues added
    until it has ``SYSTEM_TOKENS`` tokens, to within one article.
    """
    from transformers import AutoTokenizer

    from whet.data import write_inputs

    count = AutoTokenizer.from_pretrained(str(tokenizer)).encode
    write_inputs(path.parent)
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines]
    long, *others = [item["text"] for item in texts if item["kind"] == "system_long"]
    users = [item["text"] for item in texts if item["kind"] == "user"]
    more = [line for other in others for line in articles(other)]
    long = filled(long, more, limit=SYSTEM_TOKENS, count=lambda text: len(count(text)))
    rows = [{"kind": "system_long", "text": long}]
    rows += [{"kind": "user", "text": text} for text in users if len(count(text)) >= USER_TOKENS]
    write_atomic(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def filled(text: str, lines: Iterable[str], *, limit: int, count: Callable[[str], int]) -> str:
    """``text`` with ``lines`` added below it, in order, as long as it has at most ``limit``."""
    for line in lines:
        if count(f"{text}\n{line}") > limit:
            break
        text = f"{text}\n{line}"
    return text


def articles(system: str) -> list[str]:
    """The lines of a system prompt's catalogue."""
    return system.partition("Catalogue:\n")[2].splitlines()


def make_checkpoints(work: Path) -> None:
    """Every recipe that a variant uses, and the 8-bit head, at the same time, each in a process."""
    from whet.flow.run.resolve import find_inputs

    spec, root = _spec(work)
    find_inputs(spec, root, None)  # written once, before several processes read it
    wanted = {variant.weights for variant in spec.variants.values()} & set(spec.recipes)
    running = {
        name: subprocess.Popen([sys.executable, "-m", "lab.h100", "checkpoint", str(work), name])
        for name in sorted(wanted)
    }
    drafts = {item.speculation.draft for item in spec.variants.values() if item.speculation}
    if any(draft and Path(draft).name in (HEAD_8BIT, HEAD_SHARED) for draft in drafts):
        source, head = (work / "testbed" / name for name in ("eagle3", HEAD_8BIT))
        if not head.exists():
            words = ("quantize", str(source), str(head), "--scheme", "FP8_DYNAMIC")
            running[HEAD_8BIT] = subprocess.Popen([sys.executable, "-m", "whet", *words])
    failed = [name for name, process in running.items() if process.wait() != 0]
    for draft in drafts:
        if draft and Path(draft).name == HEAD_SHARED and not (work / draft).exists():
            share_head(work / "testbed" / HEAD_8BIT, work / draft)
        if draft and draft.endswith(SUFFIX) and not (work / draft).exists():
            sglang_head(work / draft.removesuffix(SUFFIX), work / draft)
    if failed:
        sys.exit(f"the checkpoints of {', '.join(failed)} were not made; the lines above say why")


def share_head(source: Path, out: Path) -> None:
    """A copy of a speculation head without its output head, so that it shares the target's."""
    shutil.copytree(source, out)
    for file in out.glob("*.safetensors"):
        tensors = load_file(file)
        tensors.pop("lm_head.weight", None)
        save_file(tensors, file, metadata={"format": "pt"})


def make_checkpoint(work: Path, name: str) -> None:
    """One recipe's checkpoint, where the run looks for it; one that is there is used again."""
    from whet.flow.run.resolve import find_inputs, quantized_path
    from whet.quant import quantize

    spec, root = _spec(work.resolve())
    recipe = spec.recipes[name]
    began = time.monotonic()
    done = quantize(
        Path(spec.model.target),
        quantized_path(root, name),
        recipe,
        calibration=recipe.calibration.source or find_inputs(spec, root, None).calibration,
    )
    print(
        f"{name}: {recipe.title}, {done.bits_per_weight:.2f} bits a weight, "
        f"{time.monotonic() - began:.1f} s",
        flush=True,
    )


def _spec(work: Path) -> tuple[Spec, Path]:
    spec = load_spec(work / "whet.yaml")
    return spec, work / "runs" / spec.name


def measure_static(work: Path, sizes: Sequence[int]) -> None:
    """``generate`` of transformers on batches of the run's own prompts; writes ``static.csv``.

    A batch size that the file already has is not measured again, and one that the device has not
    the memory for is left out.
    """
    import torch

    rows = static_rows(path := work / "static.csv")
    for size in sizes:
        if all(row["batch_size"] != str(size) for row in rows):
            try:
                rows.append({k: str(v) for k, v in asdict(_static(work, size)).items()})
                print(f"static {rows[-1]}", flush=True)
            except torch.OutOfMemoryError:
                print(f"static {size}: more than the device's memory", flush=True)
            rows.sort(key=lambda row: int(row["batch_size"]))
            write_atomic(path, static_csv(rows))


_LOADED: dict[str, Any] = {}


def _load(folder: str) -> tuple[Any, Any]:
    """Model and device, read once."""
    import torch
    from transformers import AutoModelForCausalLM

    if folder not in _LOADED:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        model.to(device)
        _LOADED[folder] = (model, device)  # from_pretrained has it in eval mode
    model, device = _LOADED[folder]
    return model, device


def _static(work: Path, size: int) -> StaticRow:
    import torch
    import transformers

    from whet.load import Draw, build_workload

    spec, _ = _spec(work)
    draw = Draw(requests=size * _STATIC_BATCHES, batch_size=size, trial=0, block_size=16)
    target = Path(spec.model.target)
    requests = build_workload(workload_texts(work), target, spec.workload, draw=draw).requests
    model, device = _load(spec.model.target)
    prompts = [request.prompt_token_ids for request in requests]
    batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    tokens = max(request.max_tokens for request in requests)
    _generate(model, device, batches[0], 4)
    _wait(torch, device)
    began = time.perf_counter()
    for batch in batches:
        _generate(model, device, batch, tokens)
        _wait(torch, device)
    seconds = time.perf_counter() - began
    return StaticRow(
        batch_size=size,
        batches=len(batches),
        seconds=round(seconds, 3),
        requests_per_s=round(len(prompts) / seconds, 4),
        output_tokens_per_s=round(len(prompts) * tokens / seconds, 2),
        input_tokens_mean=round(sum(map(len, prompts)) / len(prompts), 1),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=str(model.config._attn_implementation),
        transformers=transformers.__version__,
    )


def _generate(model: Any, device: str, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """Greedy, exactly ``tokens`` each, the shorter prompts padded on the left."""
    import torch

    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
    if made.shape[1] != longest + tokens:
        raise RuntimeError(f"{made.shape[1] - longest} tokens came instead of {tokens}")


def _wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
