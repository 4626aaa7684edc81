"""README's quantizer table: this project's methods beside llm-compressor's.

    python -m benchmarks.quantize --peer-python PATH --out results/quantize-cpu

Both tools read the same checkpoint and the same calibration token ids, each run in a fresh process
of its own, in turn, on one machine. Writes runs.csv (one line per run), table.md and
environment.json. Names no path of the machine it ran on. With --heldout the checkpoints are
also compared on held-out text: divergence.csv has every document, pairs.csv the paired tests. With
--keep the checkpoints stay: give them as weights of variants to whet run, which measures their
quality on a server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.inputs import write_inputs

from benchmarks import divergence
from benchmarks.jobs import Job, JobError, Tool, peer_tool, run_job, whet_tool
from benchmarks.table import Results, Row, table, write_rows
from whet.checkpoint import read_facts
from whet.core.errors import WhetError
from whet.core.provenance import environment, find_device, now
from whet.demo import pair_paths
from whet.quant import load_calibration
from whet.quant.checkpoint_record import copy_beside

METHODS: Final = ("rtn", "awq", "gptq")


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Calibration of one seed: the file, and the same samples as token ids."""

    file: Path
    ids: Path
    tokens: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; what is finished is on the disk whatever happens later."""
    options = _options(arguments)
    try:
        tools = _tools(options)
        with tempfile.TemporaryDirectory(prefix="quantize-", dir=options.work) as work:
            rows = Benchmark(options, Path(work)).run(tools)
    except (WhetError, JobError) as error:
        print(f"quantize: {error}", file=sys.stderr)
        return 1
    return 0 if all(row["failure"] is None for row in rows) else 1


class Benchmark:
    """One comparison: its inputs, and the rows so far."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        """``work`` holds inputs, and checkpoints unless they are kept elsewhere."""
        self._options = options
        self._work = work
        self._no_ids = work / "no-ids.json"
        self._no_ids.write_text("[]", encoding="utf-8")
        self._source: Path = options.model or pair_paths()[0]
        self._here = environment()
        self._results = Results(options.out, summary)
        self._documents: list[Row] = []
        self._pairs: list[Row] = []

    def run(self, tools: Sequence[Tool]) -> list[Row]:
        """Run every tool, method and seed in turn."""
        for tool in tools:
            tool.warm_up(self._options.device)
        for seed in self._options.seeds:
            text = self._calibration(seed)
            for method in self._options.methods:
                for tool in tools:
                    self._one(tool, method, seed, text)
            if self._options.heldout is not None:
                self._compare(seed)
        print(summary(self._results.rows))
        return self._results.rows

    def _compare(self, seed: int) -> None:
        """Measure the checkpoints of one seed on the held-out documents, which are always the same.

        They are removed after it unless they are kept.
        """
        made = [row for row in self._results.rows if row["seed"] == seed and not row["failure"]]
        names = [(str(row["tool"]), str(row["method"])) for row in made]
        folders = {name: self._folder(*name, seed) for name in names}
        options = self._options
        draw = {"samples": options.documents, "max_tokens": options.max_tokens, "seed": 0}
        sums = divergence.measure(self._source, folders, options.heldout, draw)
        about = {"model": options.model_name or self._source.name, "seed": seed}
        self._documents += divergence.document_rows(sums, about)
        self._pairs += divergence.pair_rows(sums, about)
        write_rows(self._documents, options.out / "divergence.csv")
        write_rows(self._pairs, options.out / "pairs.csv")
        for folder in folders.values() if options.keep is None else ():
            shutil.rmtree(folder)

    def _folder(self, tool: str, method: str, seed: int) -> Path:
        return (self._options.keep or self._work) / f"{tool}-{method}-{seed}"

    def _one(self, tool: Tool, method: str, seed: int, text: Text) -> None:
        out = self._folder(tool.name, method, seed)
        job = self._job(method, seed, text, out)
        row = self._row(tool, job)
        try:
            row |= run_job(tool, job, self._work / "scratch", limit_s=self._options.limit_s)
            if tool.name != "whet":  # llm-compressor writes weights and config.json alone
                copy_beside(self._source, out)
            facts = read_facts(out)
            row["bits_per_weight"] = facts.stored.bits_per_weight
            row["weight_bytes"] = facts.weight_bytes
            if row["calibration_tokens"] not in (None, text.tokens):
                used = row["calibration_tokens"]
                raise JobError(f"it calibrated on {used} tokens instead of {text.tokens}")
        except (JobError, WhetError) as error:
            row["failure"] = str(error)
        wanted = self._options.keep is not None or self._options.heldout is not None
        if not wanted or row["failure"] is not None:
            shutil.rmtree(out, ignore_errors=True)
        self._results.keep(row, _line(row))

    def _job(self, method: str, seed: int, text: Text, out: Path) -> Job:
        options = self._options
        return Job(
            source=str(self._source.resolve()),
            out=str(out),
            method=method,
            scheme="W4A16",
            group_size=128,
            device=options.device,
            calibration=str(text.file.resolve()),
            ids=str(self._no_ids if method == "rtn" else text.ids),
            samples=options.samples,
            max_tokens=options.max_tokens,
            seed=seed,
            # A CPU without bf16 instructions takes two to six times as long in the stored dtype.
            dtype=options.peer_dtype or ("float32" if options.device == "cpu" else "auto"),
            batch_size=options.peer_batch,
        )

    def _row(self, tool: Tool, job: Job) -> Row:
        peer = tool.name != "whet"
        return {
            "tool": tool.name,
            "method": job.method,
            "scheme": job.scheme,
            "group_size": job.group_size,
            "seed": job.seed,
            "model": self._options.model_name or self._source.name,
            "device": self._here.device.name if job.device != "cpu" else self._here.cpu,
            "threads": int(os.environ.get("OMP_NUM_THREADS", self._here.cpu_count)),
            "compute_dtype": job.dtype if peer else None,
            "peer_batch": job.batch_size if peer else None,
            "started_at": now(),
            "git_commit": self._here.git_commit,
            "failure": None,
        }

    def _calibration(self, seed: int) -> Text:
        """The person's file, or demo chats drawn by the seed; ids as every tool will see them."""
        file = self._options.calibration
        if file is None:
            folder = self._work / f"inputs-{seed}"
            write_inputs(folder, seed=seed)
            file = folder / "calibration.jsonl"
        drawn = load_calibration(
            file,
            self._source,
            samples=self._options.samples,
            max_tokens=self._options.max_tokens,
            seed=seed,
        )
        ids = self._work / f"ids-{seed}.json"
        ids.write_text(json.dumps(drawn.ids), encoding="utf-8")
        return Text(file=file, ids=ids, tokens=drawn.facts.tokens)


def summary(rows: Sequence[Row]) -> str:
    """A markdown table: a line for each tool and method, the mean over seeds with its range."""
    columns = (
        ("s without loading", "without_loading_s", 1),
        ("s in all", "total_s", 1),
        ("peak GiB", "peak_memory_gib", 2),
        ("bits", "bits_per_weight", 3),
    )
    return table(rows, {"quantizer": _name}, columns, runs="seeds")


def _name(row: Row) -> str:
    """Tool and method of a line; the batch where it is not the peer's default.

    This project's searches end with a refit of scales and codes, which published AWQ and GPTQ lack.
    """
    batch = "" if row["peer_batch"] in (None, 1) else f", batch {row['peer_batch']}"
    refit = " + refit" if row["tool"] == "whet" and row["method"] != "rtn" else ""
    return f"{row['tool']} {row['method']}{refit}{batch}"


def _line(row: Row) -> str:
    """One run, for whoever waits."""
    name = f"{row['tool']} {row['method']} seed {row['seed']}"
    if row["failure"] is not None:
        return name
    return (
        f"{name}: {row['total_s']:.1f} s in all, {row['without_loading_s']:.1f} s without loading, "
        f"{row['peak_memory_gib']:.2f} GiB ({row['memory_kind']}), "
        f"{row['bits_per_weight']:.3f} bits"
    )


def _tools(options: argparse.Namespace) -> list[Tool]:
    tools = [whet_tool()] if "whet" in options.tools else []
    if "llm-compressor" in options.tools:
        if options.peer_python is None:
            raise JobError(
                "give --peer-python, an interpreter that has llmcompressor 0.14, or --tools whet"
            )
        tools.append(peer_tool(options.peer_python, options.peer_path))
    return tools


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.quantize", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for runs.csv and table.md")
    add("--peer-python", help="interpreter of llm-compressor's environment")
    add("--peer-path", help="PYTHONPATH for it, if its packages are in a folder")
    add("--peer-batch", type=int, default=1, help="its calibration batch (its own default: 1)")
    add("--peer-dtype", help="what it computes in (default: float32 on a CPU, else as stored)")
    add("--tools", nargs="+", default=["whet", "llm-compressor"])
    add("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--model", type=Path, help="checkpoint folder (default: the demo target)")
    add("--model-name", help="what the table calls it (default: the folder's name)")
    add("--calibration", type=Path, help="JSONL or text (default: demo chats drawn by the seed)")
    add("--samples", type=int, default=512)
    add("--max-tokens", type=int, default=512)
    add("--heldout", type=Path, help="JSONL that no run calibrates on (default: no comparison)")
    add("--documents", type=int, default=64, help="documents of it, cut at --max-tokens")
    add("--keep", type=Path, help="folder that keeps the checkpoints (default: deleted)")
    add("--device", default=find_device().kind, choices=["cpu", "cuda"])
    add("--limit-s", type=float, default=4 * 3600, help="a run that takes longer is a failure")
    add("--work", type=Path, help="where checkpoints are made (default: the temporary folder)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
