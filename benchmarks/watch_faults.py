"""Faults injected into real vLLM servers on the CPU, and the name that the watch gives each.

    python -m benchmarks.watch_faults RUN OUT

RUN is a finished run of ``whet demo`` on this machine, whose log is beside it. Writes
``faults.csv`` to OUT, and ``scrapes/NAME.txt.xz``: the /metrics of some servers every period, which
the tests of the alert rules replay. A period is ``PERIOD_S`` here, 60 seconds by default in use;
delays are in periods. Probes are sent in every fourth. The traffic goes to the engine
itself, the watch through a proxy.

Where a fault is a flag, a file or a load, the engine really has it. What no flag can
cause is changed in its real answers by a proxy; the table says which. Nothing else may run.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.watch_proxy import Change, Proxy, in_metrics, in_path
from whet.client import get_text
from whet.core.errors import EngineLostError
from whet.core.records import ResolvedEngine
from whet.core.run import Run
from whet.core.store import write_json
from whet.engines.launch import serve_process
from whet.engines.process import free_port
from whet.flow.watch.source import WatchSource, source_of_run
from whet.watch.detectors import WARM_UP
from whet.watch.probe import GOLDEN_PER_PERIOD, Target, observe
from whet.watch.state import WatchState, advance

PERIOD_S: Final = 1.0
PROBE_EVERY: Final = 4
_HEALTHY: Final = PROBE_EVERY * (WARM_UP + 2)
_HEALTHY_WITHOUT_LEARNING: Final = 20
_MOST: Final = 60
_LENGTH_PERIODS: Final = 150
"""Changed lengths need two windows of 60 periods and 500 requests."""

Argv = Callable[[list[str]], list[str]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. ``how`` says what is really changed; ``argv`` restarts the server with it."""

    name: str
    cause: str
    how: str
    variant: str = "spec+cache"
    argv: Argv | None = None
    env: dict[str, str] = field(default_factory=dict)
    change: Change | None = None
    clock_s: float = 0.0
    traffic: str = "log"
    act: Callable[[Bench], Any] | None = None
    most: int = _MOST
    learned: bool = False
    record: bool = False


class Bench:
    """The proxy, the engine behind it, the traffic and the watch of one variant."""

    def __init__(self, run: Run, work: Path, out: Path) -> None:
        self.run, self.work, self.out = run, work, out
        self.proxy = Proxy(port=free_port())
        self.proxy.start()
        self.engine: Any = None
        self.resolved: ResolvedEngine | None = None
        self._stack = ExitStack()
        self._traffic: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    def serve(self, resolved: ResolvedEngine) -> None:
        """Replace the running engine."""
        self.stop_engine()
        log = self.work / "server.log"
        log.unlink(missing_ok=True)
        self._stack = ExitStack()
        self.engine = self._stack.enter_context(serve_process(resolved, log=log))
        self.resolved = resolved
        self.proxy.backends = [self.engine.base_url]

    def second_engine(self) -> None:
        """A second engine behind the same port."""
        assert self.resolved is not None
        other = serve_process(self.resolved, log=self.work / "second.log")
        self.proxy.backends.append(self._stack.enter_context(other).base_url)

    def stop_engine(self) -> None:
        self._stack.close()
        self._stack = ExitStack()

    def processes(self) -> list[psutil.Process]:
        """The engine's processes."""
        port = int(self.engine.base_url.rsplit(":", 1)[1])
        owner = next(
            p for p in psutil.process_iter() if any(c.laddr.port == port for c in _listening(p))
        )
        return [owner, *owner.children(recursive=True)]

    def send(self, words: Sequence[str]) -> None:
        """Send this traffic of ``whet bench``, again and again, until the next call."""
        self.quiet()
        bench = [sys.executable, "-m", "whet", "bench", self.engine.base_url, *words]
        bench += ["--num-warmups", "0", "--timeout-s", "60", "--workers", "1"]
        self._traffic = subprocess.Popen(
            ["bash", "-c", f"while true; do {' '.join(bench)}; sleep 0.2; done"],
            stdout=(self.work / "traffic.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def quiet(self) -> None:
        """Stop the traffic."""
        if self._traffic is not None:
            os.killpg(self._traffic.pid, signal.SIGKILL)
            self._traffic.wait()
            self._traffic = None


def _listening(process: psutil.Process) -> list[Any]:
    try:
        return [c for c in process.net_connections() if c.status == "LISTEN"]
    except psutil.Error:
        return []


@dataclass
class Watching:
    """The watch of one variant, period by period."""

    source: WatchSource
    target: Target
    state: WatchState

    def look(self) -> list[str]:
        """One period: the causes that are present."""
        began = time.monotonic()
        turn, rest = divmod(self.state.periods, PROBE_EVERY)
        look = observe(self.target, turn=None if rest else turn, cursor=self.state.cursor)
        done = advance(self.state, look, self.source.references)
        step = GOLDEN_PER_PERIOD if look.answers is not None else 0
        self.state = replace(done.state, cursor=self.state.cursor + step)
        time.sleep(max(0.0, PERIOD_S - (time.monotonic() - began)))
        return [finding.cause.name for finding in done.findings]


def _watching(run: Run, variant: str, url: str) -> Watching:
    recommended = run.decision and run.decision.recommendation
    assert recommended
    source = source_of_run(run, variant, recommended.batch_size)
    target = Target(url=url, envelope=source.envelope, golden=source.references.golden, timeout_s=5)
    return Watching(source=source, target=target, state=WatchState(run=run.name, variant=variant))


def with_flag(name: str, *values: str) -> Argv:
    """Set a flag, replacing an earlier value."""
    return lambda argv: [*without_flag(name)(argv), name, *values]


def without_flag(name: str) -> Argv:
    """Leave a flag and its value out."""

    def change(argv: list[str]) -> list[str]:
        if name not in argv:
            return argv
        at = argv.index(name)
        end = at + 1
        while end < len(argv) and not argv[end].startswith("--"):
            end += 1
        return argv[:at] + argv[end:]

    return change


def replaced(old: str, new: str) -> Argv:
    """Replace text in every word."""
    return lambda argv: [word.replace(old, new) for word in argv]


def damaged_copy(source: Path, target: Path, noise: float, *, permute: bool = False) -> Path:
    """A copy of a checkpoint with noise on its projections, or its vocabulary permuted."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(target / "model.safetensors")
    torch.manual_seed(0)
    for name, tensor in tensors.items():
        if permute and "embed_tokens" in name:
            tensors[name] = tensor[torch.randperm(len(tensor))].contiguous()
        elif not permute and name.endswith("proj.weight"):
            scale = noise * tensor.float().std()
            tensors[name] = (tensor + torch.randn(tensor.shape) * scale).to(tensor.dtype)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def faults(work: Path, pair: Path) -> Iterator[Fault]:
    """Every fault; a restart each where ``argv`` is given."""
    weak = damaged_copy(pair / "draft", work / "weak-draft", 0.6)
    permuted = damaged_copy(pair / "draft", work / "permuted-draft", 0, permute=True)
    damaged = damaged_copy(pair / "target", work / "damaged" / "target", 0.1)
    template = work / "template.jinja"
    template.write_text(
        "{% for m in messages %}<<{{ m.role }}>> {{ m.content }} ##{% endfor %}<<answer>>"
    )
    draft, target = str(pair / "draft"), str(pair / "target")
    restart = "restarted with "
    yield Fault(
        name="draft replaced by a weaker one",
        cause="draft_changed",
        learned=True,
        how=restart + "a draft with noise of 0.6 standard deviations on its weights",
        argv=replaced(draft, str(weak)),
        record=True,
    )
    yield Fault(
        name="draft permuted",
        cause="draft_useless",
        how=restart + "a draft whose vocabulary is permuted",
        argv=replaced(draft, str(permuted)),
        record=True,
    )
    yield Fault(
        name="draft removed",
        cause="speculation_off",
        how=restart + "no --speculative-config",
        argv=without_flag("--speculative-config"),
        record=True,
    )
    yield Fault(
        name="prefix cache off",
        cause="prefix_cache_off",
        how=restart + "--no-enable-prefix-caching",
        argv=replaced("--enable-prefix-caching", "--no-enable-prefix-caching"),
        record=True,
    )
    yield Fault(
        name="weights damaged",
        cause="answers_changed",
        how=restart + "noise of 0.1 standard deviations on the target's weights",
        argv=replaced(target, str(damaged)),
    )
    yield Fault(
        name="default temperature changed",
        cause="sampling_changed",
        learned=True,
        variant="fp16+cache",  # the CPU build samples wrongly with a draft
        how=restart + "--override-generation-config temperature 0.2",
        argv=with_flag("--override-generation-config", '{"temperature": 0.2}'),
    )
    yield Fault(
        name="context shortened",
        cause="context_shortened",
        how=restart + "--max-model-len 768",
        argv=with_flag("--max-model-len", "768"),
    )
    yield Fault(
        name="other flags",
        cause="flags_changed",
        how=restart + "--block-size 64",
        argv=with_flag("--block-size", "64"),
        record=True,
    )
    yield Fault(
        name="wrong model",
        cause="wrong_model",
        how=restart + "another --served-model-name",
        argv=with_flag("--served-model-name", "other"),
        record=True,
    )
    yield Fault(
        name="API key required",
        cause="unauthorized",
        how="in its answers: HTTP 401 below /v1",
        change=lambda path, status, body: (401 if path.startswith("/v1") else status, body),
    )
    yield Fault(
        name="chat template changed",
        cause="chat_template_changed",
        most=120,  # the template is probed in every fifth turn
        how=restart + "another --chat-template",
        argv=with_flag("--chat-template", str(template)),
    )
    yield Fault(
        name="queue grows",
        cause="queue_growing",
        how=restart + "--max-num-seqs 1; the log four times as fast",
        argv=with_flag("--max-num-seqs", "1"),
        traffic="fast",
        record=True,
    )
    yield Fault(
        name="KV cache exhausted",
        cause="kv_cache_exhausted",
        how=restart + "a KV cache of 48 blocks; the log four times as fast",
        argv=with_flag("--num-gpu-blocks-override", "48"),
        traffic="fast",
        record=True,
    )
    yield Fault(
        name="engine hangs",
        cause="hung",
        how="the engine's core process is stopped (SIGSTOP)",
        act=lambda bench: [p.send_signal(signal.SIGSTOP) for p in bench.processes()[1:]],
        argv=lambda argv: argv,
    )
    yield Fault(
        name="engine killed",
        cause="unreachable",
        how="SIGKILL to every process of the engine",
        act=lambda bench: [p.kill() for p in bench.processes()],
        argv=lambda argv: argv,
    )
    yield Fault(
        name="two engines behind one port",
        cause="several_engines",
        how="a second engine; requests alternate",
        act=lambda bench: bench.second_engine(),
        argv=lambda argv: argv,
    )
    yield Fault(
        name="CPU taken by others",
        cause="slower_than_measured",
        how="four busy processes on the engine's two cores",
        act=_busy,
        argv=lambda argv: argv,
    )
    yield Fault(
        name="load above measured",
        cause="load_above_measured",
        how="24 requests in flight, 8 were measured",
        traffic="many",
    )
    yield Fault(
        name="prompts lose their shared prefix",
        cause="prefix_hits_fell",
        how="a number before every system prompt",
        traffic="salted",
    )
    yield Fault(
        name="requests harder to draft",
        cause="acceptance_of_traffic_fell",
        how="random tokens as prompts",
        traffic="random",
    )
    yield Fault(
        name="prompts longer",
        cause="prompts_changed",
        how="every user message twice, a number before it",
        traffic="longer",
        most=_LENGTH_PERIODS,
    )
    yield from _in_answers()
    yield Fault(
        name="16-bit weights served",
        cause="unquantized_weights",
        how=restart + "the 16-bit checkpoint in place of the AWQ one",
        variant="awq+spec+cache",
        argv=lambda argv: _model(argv, target),
    )
    yield Fault(
        name="speculation on where it was off",
        cause="speculation_on",
        how=restart + "an n-gram draft",
        variant="fp16+cache",
        argv=with_flag(
            "--speculative-config",
            '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3, '
            '"prompt_lookup_min": 1}',
        ),
    )


def _in_answers() -> Iterator[Fault]:
    """Faults that are made in the engine's real answers."""
    answers = "in its answers: "
    yield Fault(
        name="metrics renamed",
        cause="metrics_renamed",
        how=answers + "vllm: is engine:",
        change=in_metrics(r"^vllm:", "engine:"),
    )
    yield Fault(
        name="metrics missing",
        cause="metrics_missing",
        how=answers + "/metrics is empty",
        change=in_metrics(r"(?s).*", ""),
    )
    yield Fault(
        name="engine updated",
        cause="engine_version",
        how=answers + "/version says 9.9.9",
        change=in_path("/version", r'"version":\s*"[^"]+"', '"version": "9.9.9"'),
    )
    yield Fault(
        name="5% of requests fail",
        cause="errors",
        how=answers + "one HTTP 5xx counted for 20 successes",
        change=_five_percent,
    )
    yield Fault(
        name="restart loop",
        cause="restart_loop",
        how=answers + "the process start moves on every 5 s",
        change=lambda path, status, body: (status, _restarting(path, body)),
    )
    yield Fault(
        name="clock wrong",
        cause="clock_skew",
        how=answers + "Date is a minute late",
        clock_s=-60.0,
    )
    yield Fault(
        name="answers are NaN",
        cause="answers_broken",
        how=answers + "HTTP 400, Out of range float values are not JSON compliant",
        change=_not_a_number,
    )
    yield Fault(
        name="adapter missing",
        cause="adapter_missing",
        how="the reference names an adapter that is not served",
    )


def _model(argv: list[str], target: str) -> list[str]:
    at = argv.index("--model")
    return [*argv[: at + 1], target, *argv[at + 2 :]]


def _five_percent(path: str, status: int, body: bytes) -> tuple[int, bytes]:
    if path != "/metrics":
        return status, body
    done = sum(
        float(line.rsplit(" ", 1)[1])
        for line in body.decode().splitlines()
        if line.startswith("vllm:request_success_total")
    )
    line = f'http_requests_total{{handler="/v1/completions",status="5xx"}} {done // 20}\n'
    return status, body + line.encode()


def _restarting(path: str, body: bytes) -> bytes:
    if path != "/metrics":
        return body
    now = f"process_start_time_seconds {time.time() // 5 * 5}"
    start = "process_start_time_seconds "
    lines = [line for line in body.decode().splitlines() if not line.startswith(start)]
    return "\n".join([*lines, now, ""]).encode()


def _not_a_number(path: str, status: int, body: bytes) -> tuple[int, bytes]:
    if path == "/v1/completions" and b'"top_logprobs"' in body and b'"token_id:' in body:
        return 400, b'{"error": {"message": "Out of range float values are not JSON compliant"}}'
    return status, body


def _busy(bench: Bench) -> None:
    for _ in range(4):
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        bench._stack.callback(busy.kill)


def traffics(log: Path, work: Path) -> dict[str, list[str]]:
    """The run's log at its own times, twice as fast; changed copies of it; and other loads."""
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for name, times in (("longer", 2), ("salted", 1)):
        changed = (_changed(row, f"{at}: ", times) for at, row in enumerate(rows))
        text = "".join(json.dumps(row) + "\n" for row in changed)
        (work / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return {
        "log": ["--trace", str(log), "--trace-speed", "2"],
        "fast": ["--trace", str(log), "--trace-speed", "4"],
        "many": ["--concurrency", "24", "--num-prompts", "2000", "--output-len", "128"],
        "random": ["--request-rate", "6", "--num-prompts", "500", "--input-len", "200"],
        "longer": ["--trace", str(work / "longer.jsonl"), "--trace-speed", "2"],
        "salted": ["--trace", str(work / "salted.jsonl"), "--trace-speed", "2"],
    }


def _changed(row: dict[str, Any], salt: str, times: int) -> dict[str, Any]:
    messages = [dict(message) for message in row["request"]["messages"]]
    messages[0]["content"] = salt + messages[0]["content"]
    for message in messages[1:]:
        message["content"] = " ".join([message["content"]] * times)
    return {**row, "request": {**row["request"], "messages": messages}}


@contextmanager
def scrapes(bench: Bench, name: str, *, wanted: bool) -> Iterator[Callable[[], None]]:
    """Yields a function that keeps /metrics; all of them are stored at the end."""
    pages: list[str] = []

    def keep() -> None:
        if wanted:
            try:
                pages.append(get_text(bench.url, "/metrics", timeout_s=5))
            except EngineLostError:
                pages.append("")

    yield keep
    if wanted:
        path = bench.out / "scrapes" / f"{name.replace(' ', '-')}.txt.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (
            "".join(f"{line}\n" for line in page.splitlines() if _is_read(line)) for page in pages
        )
        path.write_bytes(lzma.compress("\f".join(lines).encode(), preset=9))


def _is_read(line: str) -> bool:
    """Counters and histograms that the rules read."""
    used = ("vllm:", "http_requests_total", "process_start_time_seconds")
    return line.startswith(used) and "_created" not in line


def inject(bench: Bench, fault: Fault, healthy: Watching, traffic: Sequence[str]) -> list[object]:
    """Run one fault on a copy of the healthy watch; the row of the table."""
    watching = replace(healthy)
    resolved = bench.run.engines[fault.variant]
    if fault.cause == "adapter_missing":
        envelope = replace(watching.source.envelope, loras=("formal",))
        references = replace(watching.source.references, envelope=envelope)
        watching.source = replace(watching.source, references=references)
    if fault.argv is not None:
        bench.quiet()
        env = {**dict(resolved.env), **fault.env}
        argv = tuple(fault.argv(list(resolved.argv)))
        name = argv[argv.index("--served-model-name") + 1]
        changed = replace(resolved, argv=argv, env=tuple(env.items()), served_model_name=name)
        bench.serve(changed)
    bench.send(traffic)
    time.sleep(4)
    if fault.act is not None:
        fault.act(bench)
    bench.proxy.change, bench.proxy.clock_s = fault.change, fault.clock_s
    first, right, names = None, None, set[str]()
    with scrapes(bench, fault.name, wanted=fault.record) as keep:
        for period in range(1, fault.most + 1):
            keep()
            present = watching.look()
            names |= set(present)
            first = first or (f"{present[0]} ({period})" if present else None)
            if fault.cause in present and right is None:
                right = period
                if not fault.record:
                    break
            if right is not None and period >= 40:
                break
    bench.proxy.change, bench.proxy.clock_s = None, 0.0
    others = " ".join(sorted(names - {fault.cause}))
    return [fault.name, fault.how, fault.cause, right or "not named", first or "none", others]


def main() -> None:
    """Inject every fault and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names, with commas; other rows are kept")
    options = parser.parse_args()
    run = Run.read(options.run)
    log = options.run.with_name(f"{options.run.name}-log.jsonl")
    work = options.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    pair = Path(run.engines["spec+cache"].variant.model_path).parent
    bench, sent, rows = Bench(run, work, options.out), traffics(log, work), []
    healthy, every = dict[str, Watching](), list(faults(work, pair))
    chosen = [x for x in every if not options.only or x.name in options.only.split(",")]
    try:
        for fault in chosen:
            if fault.variant not in healthy:
                learned = any(x.learned for x in chosen if x.variant == fault.variant)
                healthy[fault.variant] = _settle(
                    bench, run, fault.variant, sent["log"], learned=learned
                )
            elif fault.argv is None and bench.resolved != run.engines[fault.variant]:
                bench.quiet()
                bench.serve(run.engines[fault.variant])
            rows.append(inject(bench, fault, healthy[fault.variant], sent[fault.traffic]))
            if fault.act is not None:
                bench.resolved = None
            print(*rows[-1], sep=" | ", flush=True)
    finally:
        bench.quiet()
        bench.stop_engine()
        _write(options.out / "faults.csv", rows, [fault.name for fault in every])
        if "spec+cache" in healthy:
            envelope = healthy["spec+cache"].source.envelope
            write_json(options.out / "scrapes" / "envelope.json", envelope)


def _settle(bench: Bench, run: Run, variant: str, log: Sequence[str], *, learned: bool) -> Watching:
    """The watch of a healthy server until it has learned its references."""
    bench.quiet()
    bench.serve(run.engines[variant])
    bench.send(log)
    time.sleep(8)
    watching = _watching(run, variant, bench.url)
    periods, alarms = _HEALTHY if learned else _HEALTHY_WITHOUT_LEARNING, set[str]()
    with scrapes(bench, f"healthy {variant}", wanted=True) as keep:
        for _ in range(periods):
            keep()
            alarms |= set(watching.look())
    print(f"{variant}: {periods} healthy periods, alarms: {sorted(alarms) or 'none'}", flush=True)
    return watching


def _write(path: Path, rows: list[list[object]], order: list[str]) -> None:
    """Write the table; rows of an earlier call that were not measured again stay."""
    table = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            table = {row[0]: row for row in list(csv.reader(file))[1:]}
    table |= {str(row[0]): row for row in rows}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["fault", "how", "cause", "periods", "first name", "other names"])
        writer.writerows(table[name] for name in order if name in table)


if __name__ == "__main__":
    main()
