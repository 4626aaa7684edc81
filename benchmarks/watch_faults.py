"""What ``whet watch`` says of faults of a real deployment, and after how many seconds.

    python -m benchmarks.watch_faults OUT --run runs/demo --weights 4BIT [--loops 3]

Deploys the run's recommendation on this machine's CPU under half of the load that it takes, learns
for two minutes, and then makes one fault after the other, each under a watch that goes on from
there. ``--weights`` is a quantized checkpoint of the same model, ``--loops`` the busy processes
that run all the time. Writes ``faults.csv`` to OUT.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil
from scripts.watch_demo import Deployment, process, say, whet

LEARN_S: Final = 120.0
PERIOD_S: Final = 5.0
MOST_S: Final = 180.0
LOOPS: Final = 4
_SPIN: Final = [sys.executable, "-c", "while True: pass"]
FAULTS: Final = {
    "latency doubled by four busy processes": "slower_than_measured",
    "server hung (SIGSTOP to the engine's core)": "hung",
    "restart": "",
    "K = 1 for 4": "draft_length_changed",
    "speculation off": "speculation_off",
    "prefix cache off": "prefix_cache_off",
    "4-bit weights under the same name": "answers_changed",
    "server gone (SIGKILL)": "unreachable",
}


def scripts(bundle: Path, weights: Path) -> dict[str, str]:
    """The bundle's ``serve.sh``, changed for each fault that is a restart."""
    text = (bundle / "serve.sh").read_text()
    return {
        "restart": text,
        "K = 1 for 4": re.sub(r'("num_speculative_tokens": )\d+', r"\g<1>1", text),
        "speculation off": re.sub(r"--speculative-config '[^']*' ", "", text),
        "prefix cache off": text.replace("--enable-prefix-", "--no-enable-prefix-"),
        "4-bit weights under the same name": re.sub(r"--model \S+", f"--model {weights}", text),
    }


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that only take time."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(process(_SPIN, Path(os.devnull)))
        yield


def end_or_stop(here: Deployment, number: signal.Signals) -> None:
    """Signal the engine's core for SIGSTOP and SIGCONT, else every process of the server."""
    server = psutil.Process(here.pid)
    for part in (*server.children(recursive=True), server):
        if number == signal.SIGKILL or "EngineCore" in " ".join((part.name(), *part.cmdline())):
            part.send_signal(number)


def alarms(state: Path, since: float) -> list[tuple[str, int]]:
    """Causes that began since a time, with the seconds from it."""
    rows = [json.loads(line) for line in (state / "journal.jsonl").read_text().splitlines()]
    times = [(r["cause"], datetime.fromisoformat(r["at"])) for r in rows if r["kind"] == "alarm"]
    return [(name, round(at.timestamp() - since)) for name, at in times if at.timestamp() >= since]


class Campaign:
    """One deployment, its healthy state, and a row for each fault."""

    def __init__(self, here: Deployment, out: Path, files: dict[str, str]) -> None:
        self.here, self.out, self.files = here, out, files
        self.healthy, self.serves = out / "healthy", "restart"

    def row(self, fault: str) -> tuple[object, ...]:
        """Make one fault; the causes of its first two minutes, and when the right one came."""
        state, right = self.out / re.sub(r"\W+", "-", fault), FAULTS[fault]
        shutil.copytree(self.healthy, state)
        if fault in self.files:
            self.here.stop()
        elif self.serves != "restart":
            self.serve("restart")
        with self.here.watched(state, period_s=PERIOD_S), ExitStack() as stack:
            time.sleep(20)
            began = time.time()
            self.make(fault, stack)
            up = time.time()
            while time.time() - up < MOST_S:
                names = dict(reversed(alarms(state, began)))
                if right in names or (not right and time.time() - up > MOST_S / 2):
                    break
                time.sleep(1)
            if "SIGSTOP" in fault:
                end_or_stop(self.here, signal.SIGCONT)
        causes = [(name, after - round(up - began)) for name, after in alarms(state, began)]
        own = [item for item in causes if item[1] >= 0]
        row = (fault, right, *(own[0] if own else ("", "")), os.getloadavg()[0], causes)
        say(str(row))
        return row

    def make(self, fault: str, stack: ExitStack) -> None:
        """Make the fault; it ends with ``stack``."""
        if fault in self.files:
            self.serve(fault)
        elif "busy" in fault:
            stack.enter_context(busy(LOOPS))
        else:
            end_or_stop(self.here, signal.SIGSTOP if "SIGSTOP" in fault else signal.SIGKILL)

    def serve(self, fault: str) -> None:
        """Start the server with a fault's script."""
        script, self.serves = self.out / "serve.sh", fault
        script.write_text(self.files[fault])
        self.here.serve(script)


def main() -> None:
    """Deploy, learn, break, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"))
    parser.add_argument("--log", type=Path, required=True, help="the run's request log")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--speed", type=float, help="of the log; default: half of the capacity")
    parser.add_argument("--loops", type=int, default=0)
    options = parser.parse_args()
    bundle = options.out / "deployment"
    whet("deploy", options.run, "-o", bundle, "--scrape-interval", PERIOD_S)
    here = Deployment(bundle, options.out / "logs", options.log)
    campaign = Campaign(here, options.out, scripts(bundle, options.weights.resolve()))
    with ExitStack() as stack:
        stack.callback(here.stop)
        campaign.serve("restart")
        if options.speed is None:
            here.fit()
        else:
            here.speed = options.speed
        stack.enter_context(busy(options.loops))
        stack.enter_context(here.traffic())
        with here.watched(campaign.healthy, period_s=PERIOD_S):
            time.sleep(LEARN_S)
        say(f"healthy: {alarms(campaign.healthy, 0.0) or 'no alarm'}")
        rows = [campaign.row(fault) for fault in FAULTS]
    with (options.out / "faults.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("fault", "cause", "said first", "seconds", "load", "all"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
