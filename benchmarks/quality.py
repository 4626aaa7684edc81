"""What the quality gate sees on the demo pair: real differences, planted faults, and nothing.

    python -m benchmarks.quality run OUT                 # goes on where a stopped one left off
    python -m benchmarks.quality table OUT --markdown README.md --csv quality.csv

Every case is a real vLLM server on this machine. A faulty checkpoint replaces a variant's weights
or tokens, and the gate has to find it without further information.

False alarms are simulated from what was stored. Two servers of the same weights that round in
different ways (float32 and bfloat16) are compared with each other; to which of the two a document
or a task belongs is drawn by a coin, and the gate judges each of 1,000 draws.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from lab.adapters import adapter_paths
from lab.faults import (
    merge_adapter,
    permute_vocabulary,
    scale_layer,
    swap_tokens,
    unit_kv_scales,
    wrong_eos,
)

from whet.checkpoint.kv_scales import kv_scales_problem
from whet.core.records import QualityRecord, Speculation
from whet.core.spec import EngineSpec, QualitySpec, RecipeSpec
from whet.core.spec.recipe import CalibrationSpec
from whet.core.store import RunStore, write_atomic
from whet.data import write_inputs
from whet.demo import pair_paths
from whet.flow.quantize.serve_check import Serving, resolve_serving
from whet.quality import ChecksPlan, GoldenSource, PlainReference, QualityPlan, measure_quality
from whet.quality.answers import score_tasks
from whet.quality.perplexity import perplexity_ratio
from whet.quality.verdicts import Findings, verdicts
from whet.quant import quantize

BASELINE: Final = "fp16"
SPEC: Final = QualitySpec(max_documents=60, max_tasks=48, max_tokens=512)
TOLERANCES: Final = (0.01, 0.02, 0.05)
DRAWS: Final = 1000
_TOKENS: Final = 2048


Folder = Callable[[Path], Path]
"""The folder that a case serves, made below a working folder where it is not there yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A server that is judged. ``same`` says that it should serve the baseline's own weights."""

    what: str
    expect: str
    folder: Folder = lambda _work: pair_paths()[0]
    recipe: RecipeSpec | None = None
    draft: Folder | None = None
    same: bool = False
    dtype: str | None = None


def _made(name: str, make: Callable[[Path, Path], object]) -> Folder:
    """``make`` is given the working folder and what to write."""

    def folder(work: Path) -> Path:
        out = work / name
        if not out.exists():
            make(work, out)
        return out

    return folder


def _quantized(recipe: RecipeSpec) -> Folder:
    def make(work: Path, out: Path) -> None:
        quantize(pair_paths()[0], out, recipe, calibration=work / "inputs" / "calibration.jsonl")

    return _made(recipe.stored_scheme, make)


_TARGET, _DRAFT = pair_paths()
_CALIBRATION: Final = CalibrationSpec(samples=128, max_tokens=128)
W4: Final = RecipeSpec(method="awq", scheme="W4A16", calibration=_CALIBRATION)
W8: Final = RecipeSpec(method="smoothquant", scheme="W8A8", calibration=_CALIBRATION)
_SCALED: Final = _made("scaled", lambda _work, out: scale_layer(_TARGET, out, 2))
_SCALED_W4: Final = _made("scaled-w4", lambda w, out: scale_layer(_quantized(W4)(w), out, 2))
_SWAPPED: Final = _made("swapped", lambda _work, out: swap_tokens(_TARGET, out))
_OTHER_END: Final = _made("other-eos", lambda _work, out: wrong_eos(_TARGET, out))
_MERGED: Final = _made(
    "merged", lambda _work, out: merge_adapter(_TARGET, adapter_paths()["formal"], out)
)
_OTHER_DRAFT: Final = _made("other-draft", lambda _work, out: permute_vocabulary(_DRAFT, out))

CASES: Final[Mapping[str, Case]] = {
    BASELINE: Case(what="16 bit, the baseline", expect="pass"),
    "again": Case(what="16 bit, another server", same=True, expect="pass"),
    "rounded": Case(what="16 bit, computed in bfloat16", dtype="bfloat16", expect="pass"),
    "w8a8": Case(what="W8A8, SmoothQuant", folder=_quantized(W8), recipe=W8, expect="pass"),
    "w4a16": Case(what="W4A16, AWQ", folder=_quantized(W4), recipe=W4, expect="any"),
    "spec": Case(what="draft model, K = 3", draft=lambda _: _DRAFT, same=True, expect="any"),
    "scale": Case(what="fault: a layer × 1.05", folder=_SCALED, same=True, expect="fail"),
    "scale-w4": Case(
        what="fault: a layer × 1.05 in W4A16", folder=_SCALED_W4, recipe=W4, expect="any"
    ),
    "tokens": Case(what="fault: two tokens swapped", folder=_SWAPPED, same=True, expect="fail"),
    "eos": Case(what="fault: another EOS", folder=_OTHER_END, same=True, expect="fail"),
    "merged": Case(what="fault: a LoRA merged", folder=_MERGED, same=True, expect="fail"),
    "draft": Case(
        what="fault: a draft of another tokenizer", draft=_OTHER_DRAFT, same=True, expect="fail"
    ),
}


def run(out: Path, only: frozenset[str]) -> None:
    """Serve and judge every case that has no record yet."""
    work = out / "work"
    if not (work / "inputs").exists():
        write_inputs(work / "inputs")
    with RunStore.open(out / "store", resume=(out / "store").exists()) as store:
        for name, case in CASES.items():
            wanted = name == BASELINE or not only or name in only
            if wanted and not store.done("quality", name):
                _judge(store, work, name, case)


def _judge(store: RunStore, work: Path, name: str, case: Case) -> None:
    baseline = None if name == BASELINE else store.get("quality", BASELINE, QualityRecord)
    args = {} if case.dtype is None else {"dtype": case.dtype}
    spec = EngineSpec(args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    serving = Serving(name=name, path=case.folder(work), recipe=case.recipe, max_model_len=_TOKENS)
    engine, resolved = resolve_serving(serving, spec)
    if case.draft is not None:
        draft = Speculation(method="draft_model", num_tokens=3, draft_path=str(case.draft(work)))
        resolved = engine.resolve(replace(resolved.variant, speculation=draft), spec)
    plan = QualityPlan(
        variant=name,
        tokenizer=_TARGET,
        spec=SPEC,
        heldout=work / "inputs" / "heldout.jsonl",
        tasks=work / "inputs" / "tasks.jsonl",
        baseline=baseline,
        tolerances=TOLERANCES,
        arrays=store.path("top_logprobs"),
        checks=ChecksPlan(
            golden=store.path("golden"),
            source=GoldenSource(variant=name, engine_version=resolved.engine_version),
            same_weights_reference=baseline if case.same else None,
            plain=store.get("plain", BASELINE, PlainReference) if case.draft else None,
            is_plain=name == BASELINE,
        ),
    )
    with engine.serve(resolved, log=store.path("logs", f"{name}.log")) as server:
        measured = measure_quality(server.base_url, server.model_name, plan)
    if measured.plain is not None:
        store.put("plain", name, measured.plain)
    store.put("quality", name, measured.record)
    record = measured.record
    print(f"{name}: {_verdict(record)} in {record.seconds:.0f} s; {record.reason}", flush=True)


def _verdict(record: QualityRecord) -> str:
    return dict(record.verdicts)[TOLERANCES[0]]


def false_alarms(one: QualityRecord, other: QualityRecord) -> tuple[int, int]:
    """How many of ``DRAWS`` comparisons of a model with itself pass, and how many fail.

    A coin says which side a document or a task belongs to: under the null the two are alike.
    """
    random = np.random.default_rng(0)
    words = []
    for _ in range(DRAWS):
        nll, answers = (
            _dealt(random, left, right)
            for left, right in ((one.nll, other.nll), (one.answers, other.answers))
        )
        baseline = replace(one, nll=tuple(nll[1]), answers=tuple(answers[1]))
        judged, _ = verdicts(
            Findings(
                ratio=perplexity_ratio(nll[0], nll[1]),
                tasks=score_tasks(answers[0], baseline),
                answers=answers[0],
                baseline=baseline,
            ),
            TOLERANCES[:1],
        )
        words.append(judged[0][1])
    return words.count("pass"), words.count("fail")


def _dealt(random: np.random.Generator, left: Any, right: Any) -> tuple[list[Any], list[Any]]:
    coins = random.integers(0, 2, size=len(left))
    pairs = [(a, b) if coin else (b, a) for coin, a, b in zip(coins, left, right, strict=True)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def rows(store: RunStore, work: Path) -> Iterator[dict[str, Any]]:
    """One row a case that was judged."""
    for name, case in CASES.items():
        record = store.get("quality", name, QualityRecord)
        if record is None:
            continue
        kl, ratio = record.distances, record.perplexity_ratio
        verdict = _verdict(record)
        met = case.expect in ("any", verdict)
        yield {
            "case": case.what,
            "expected": case.expect,
            "verdict": verdict,
            "as expected": "yes" if met else "NO",
            "perplexity %": _interval(ratio, 100, 1) if ratio else "",
            "KL, nats": _interval(kl.kl, 1, 0) if kl else "",
            "KL p99": f"{kl.kl_p99.value:.2g}" if kl else "",
            "flips %": f"{100 * kl.flips.value:.2f}" if kl else "",
            "lost/gained": f"{sum(t.lost or 0 for t in record.tasks)}/"
            f"{sum(t.gained or 0 for t in record.tasks)}",
            "seconds": f"{record.seconds:.0f}",
            "reason": record.reason or "",
        }


def _interval(estimate: Any, times: float, less: float) -> str:
    value, low, high = (
        None if each is None else times * (each - less)
        for each in (estimate.value, estimate.low, estimate.high)
    )
    sign = "+" if less else ""
    return f"{value:{sign}.2g}" + ("" if low is None else f" [{low:{sign}.2g}, {high:{sign}.2g}]")


def check_unit_scales(work: Path) -> str | None:
    """What is said of a checkpoint whose FP8 KV scales were all set to 1.0; no server is needed."""
    recipe = RecipeSpec(scheme="W8A8", kv_cache="fp8", calibration=_CALIBRATION)
    good = _made(
        "kv",
        lambda w, out: quantize(
            _TARGET, out, recipe, calibration=w / "inputs" / "calibration.jsonl"
        ),
    )(work)
    bad = _made("kv-unit", lambda _work, out: unit_kv_scales(good, out))(work)
    assert kv_scales_problem(good) is None
    return kv_scales_problem(bad)


def table(out: Path) -> tuple[str, str]:
    """Markdown and CSV of all that was judged."""
    store = RunStore.read(out / "store")
    table_rows = list(rows(store, out / "work"))
    columns = list(table_rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row[name]) for name in columns) + " |" for row in table_rows]
    parts = {
        name: record.parts
        for name in CASES
        if (record := store.get("quality", name, QualityRecord)) is not None
    }
    lines += ["", "Seconds by question: "]
    lines += [
        f"- {name}: " + ", ".join(f"{part} {seconds:.1f}" for part, seconds in seconds_by_part)
        for name, seconds_by_part in parts.items()
    ]
    one, other = (store.get("quality", name, QualityRecord) for name in (BASELINE, "rounded"))
    if one is not None and other is not None:
        passed, failed = false_alarms(one, other)
        lines += ["", f"The same against itself: {passed} of {DRAWS} pass, {failed} fail."]
    lines += ["", f"FP8 KV scales of 1.0: {check_unit_scales(out / 'work')}"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(table_rows)
    return "\n".join(lines) + "\n", text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("out", type=Path)
    go.add_argument("--only", default="")
    tell = commands.add_parser("table")
    tell.add_argument("out", type=Path)
    tell.add_argument("--markdown", type=Path, required=True)
    tell.add_argument("--csv", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "run":
        run(options.out, frozenset(filter(None, options.only.split(","))))
        return
    markdown, rows_text = table(options.out)
    write_atomic(options.markdown, markdown.encode())
    write_atomic(options.csv, rows_text.encode())
    print(markdown)


if __name__ == "__main__":
    main()
