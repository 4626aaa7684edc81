"""``make watch-demo``: deploy the demo's recommendation, break it, see the alarm (3 minutes).

Real vLLM on the CPU, real Prometheus and Alertmanager, ``whet watch``, and a webhook. The fault is
a draft whose vocabulary is permuted: answers stay right, and every draft is refused. The server is
measured first, and gets half of the requests that it can answer, at most those of the log. It ends
with exit code 0 if the webhook received the alarm by its name within the stated delay, with 75 if
the machine is too busy, and with 1 otherwise.

    python scripts/watch_demo.py [--run runs/demo] [--out runs/watch-demo]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from whet.core.run import Run
from whet.core.store import write_atomic
from whet.deploy.monitoring import notification_delay_s
from whet.engines.process import free_port

SCRAPE_S: Final = 2.0
HEALTHY_S: Final = 90.0
VARIANT: Final = "draft+cache"
CAUSE: Final = "draft_useless"
TOO_BUSY: Final = 75
LEAST_RPS: Final = 0.8
"""Requests per second that the rules need: shares of requests count from 40 a minute on."""
RULES: Final = ("WhetAcceptanceLengthBelowMeasured", "WhetAcceptanceRateBelowFloor")
"""The alerts of Prometheus' own rules that this fault has to raise."""
_WHET: Final = (sys.executable, "-m", "whet")
_PROGRAMS: Final = {
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
}


class Webhook(threading.Thread):
    """Receives what Alertmanager posts: (seconds since the epoch, alert) pairs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.alerts: list[tuple[float, dict[str, Any]]] = []
        received = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.extend((time.time(), alert) for alert in json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def run(self) -> None:
        self._server.serve_forever()

    def names(self) -> set[str]:
        """Alerts that fire, and causes of the watch."""
        firing = [alert["labels"] for _, alert in self.alerts if alert["status"] == "firing"]
        return {labels.get("cause", labels["alertname"]) for labels in firing}


@contextmanager
def process(words: list[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, ended as a whole."""
    with log.open("ab") as file:
        running = subprocess.Popen(
            words,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(running.pid, number)
                running.wait(timeout=15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def wait_for(url: str, *, seconds: float = 180.0) -> None:
    """Wait until ``url`` answers 200."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urlopen(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except (URLError, OSError):
            pass
        if time.monotonic() > deadline:
            sys.exit(f"error: {url} did not answer within {seconds:g} s; look at the logs")
        time.sleep(0.5)


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def too_busy(why: str) -> None:
    """End with its own exit code: nothing is shown of the watch."""
    print(f"\nThe machine is too busy for this demo: {why}. End other work and start it again.")
    sys.exit(TOO_BUSY)


def whet(*words: object) -> None:
    """Run a command of whet and show it."""
    print(f"\n$ whet {' '.join(map(str, words))}", flush=True)
    done = subprocess.run([*_WHET, *map(str, words)], check=False)
    if done.returncode:
        sys.exit(f"error: whet {words[0]} ended with exit code {done.returncode}")


class Deployment:
    """The bundle's server, its traffic, and everything that watches it, on the loopback."""

    def __init__(self, bundle: Path, logs: Path, log: Path) -> None:
        self.bundle, self.logs, self.log, self.speed = bundle, logs, log, 1.0
        self.port, self.watch, self.prometheus = free_port(), free_port(), free_port()
        self._server = ExitStack()
        logs.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, script: Path) -> None:
        """Start the server by ``script``, instead of the one that runs."""
        self._server.close()
        self._server = ExitStack()
        log = self.logs / "engine.log"
        log.unlink(missing_ok=True)
        words = ["sh", str(script)]
        self.pid = self._server.enter_context(process(words, log, PORT=str(self.port))).pid
        wait_for(f"{self.url}/health")

    def stop(self) -> None:
        """End the server."""
        self._server.close()

    @contextmanager
    def monitored(self, alertmanager: int) -> Iterator[None]:
        """Prometheus and Alertmanager with the bundle's files, their addresses on this host."""
        files = self.logs.parent / "monitoring"
        shutil.copytree(self.bundle / "monitoring", files, dirs_exist_ok=True)
        config = (files / "prometheus.yml").read_text()
        for name, port in (
            ("vllm:8000", self.port),
            ("host.docker.internal:9464", self.watch),
            ("alertmanager:9093", alertmanager),
        ):
            config = config.replace(name, f"127.0.0.1:{port}")
        write_atomic(files / "prometheus.yml", config.encode())
        data = self.logs.parent / "data"
        with (
            process(
                [
                    "prometheus",
                    f"--config.file={files / 'prometheus.yml'}",
                    f"--storage.tsdb.path={data / 'prometheus'}",
                    f"--web.listen-address=127.0.0.1:{self.prometheus}",
                ],
                self.logs / "prometheus.log",
            ),
            process(
                [
                    "prometheus-alertmanager",
                    f"--config.file={files / 'alertmanager.yml'}",
                    f"--storage.path={data / 'alertmanager'}",
                    f"--web.listen-address=127.0.0.1:{alertmanager}",
                    "--cluster.listen-address=",
                ],
                self.logs / "alertmanager.log",
            ),
        ):
            wait_for(f"http://127.0.0.1:{self.prometheus}/-/ready")
            wait_for(f"http://127.0.0.1:{alertmanager}/-/ready")
            yield

    def capacity_rps(self) -> float:
        """Requests of the log that the server answers per second, eight in flight."""
        words = [*_WHET, "bench", self.url, "--trace", str(self.log), "--trace-speed", "1000"]
        words += ["--max-concurrency", "8", "--num-prompts", "32", "--num-warmups", "8"]
        done = subprocess.run([*words, "--json"], check=False, capture_output=True, text=True)
        if not done.stdout:
            sys.exit(f"error: the server could not be measured: {done.stderr.strip()[-300:]}")
        return float(json.loads(done.stdout)["runs"][0]["request_throughput"])

    def fit(self) -> None:
        """Replay the log as fast as half of the capacity takes; end where that is too slow."""
        times = [json.loads(line)["timestamp"] for line in self.log.read_text().splitlines()]
        own_rps, capacity_rps = len(times) / (max(times) - min(times)), self.capacity_rps()
        self.speed = min(1.0, capacity_rps / 2 / own_rps)
        say(
            f"the server answers {capacity_rps:.1f} requests/s; the log's {own_rps:.1f} are "
            f"replayed at {self.speed:.0%} of their speed"
        )
        if self.speed * own_rps < LEAST_RPS:
            too_busy(f"it answers {capacity_rps:.1f} requests/s, and {2 * LEAST_RPS} are needed")

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """The run's log, over and over, at the speed that the machine takes."""
        words = f"{sys.executable} -m whet bench {self.url} --trace {self.log} --num-warmups 0"
        words += f" --trace-speed {self.speed:.3g} --workers 1 --timeout-s 30"
        loop = f"while true; do {words}; sleep 0.2; done"
        with process(["bash", "-c", loop], self.logs / "traffic.log"):
            yield

    @contextmanager
    def watched(self, state: Path, *, period_s: float = SCRAPE_S) -> Iterator[None]:
        """``whet watch`` on the bundle."""
        words = [*_WHET, "watch", str(self.bundle), "--url", self.url, "--state", str(state)]
        words += ["--period", str(period_s), "--listen", f"127.0.0.1:{self.watch}"]
        with process(words, self.logs / "watch.log"):
            yield


def permuted_draft(bundle: Path, out: Path) -> Path:
    """The bundle's ``serve.sh`` with a copy of the draft whose vocabulary is permuted."""
    import torch
    from safetensors.torch import load_file, save_file

    engine = json.loads((bundle / "watch" / "engine.json").read_text())
    draft = Path(engine["variant"]["speculation"]["draft_path"])
    copy = out / "permuted-draft"
    shutil.copytree(draft, copy, dirs_exist_ok=True)
    tensors = load_file(copy / "model.safetensors")
    torch.manual_seed(0)
    for name in [name for name in tensors if "embed_tokens" in name]:
        tensors[name] = tensors[name][torch.randperm(len(tensors[name]))].contiguous()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    script = out / "serve-permuted.sh"
    text = (bundle / "serve.sh").read_text()
    write_atomic(script, text.replace(str(draft), str(copy)).encode())
    return script


def demonstrate(run: Path, log: Path, out: Path, *, variant: str = VARIANT) -> bool:
    """The whole story; True where the webhook received the alarm and the alerts in time."""
    webhook, bundle = Webhook(), out / "deployment"
    webhook.start()
    whet("deploy", run, "-o", bundle, "--variant", variant, "--scrape-interval", SCRAPE_S,
         "--webhook", webhook.url)  # fmt: skip
    here = Deployment(bundle, out / "logs", log)
    stated = notification_delay_s(SCRAPE_S)
    with ExitStack() as stack:
        stack.callback(here.stop)
        say(f"starting {bundle / 'serve.sh'}")
        here.serve(bundle / "serve.sh")
        here.fit()
        stack.enter_context(here.monitored(free_port()))
        traffic = stack.enter_context(ExitStack())
        traffic.enter_context(here.traffic())
        stack.enter_context(here.watched(out / "watch"))
        say(f"serving, watched by Prometheus (127.0.0.1:{here.prometheus}) and whet watch")
        time.sleep(HEALTHY_S)
        before = webhook.names()
        rules = set(RULES) - before
        if before & set(RULES):
            say("an alert of the acceptance rules fires already: the other one has to follow")
        say(f"healthy for {HEALTHY_S:g} s; alerts: {', '.join(sorted(before)) or 'none'}")
        script = permuted_draft(bundle, out)
        say("the fault: the engine is restarted with a draft whose vocabulary is permuted")
        traffic.close()
        here.serve(script)
        traffic.enter_context(here.traffic())
        began = time.time()
        say(f"serving again; stated delay: {stated:g} s once requests arrive")
        named = await_alerts(webhook, began, stated + 10, rules) and CAUSE not in before
        if not named and (now_rps := here.capacity_rps()) < 2 * LEAST_RPS:
            too_busy(f"it answers {now_rps:.1f} requests/s now, next to the demo's own traffic")
    proposal = out / "watch" / "proposals" / f"{CAUSE}.yaml"
    say(f"proposed run: {proposal}" if proposal.exists() else "no run was proposed")
    return named and proposal.exists()


def await_alerts(
    webhook: Webhook, began: float, seconds: float, rules: Collection[str] = RULES
) -> bool:
    """Report alerts as they come until the cause and one of the rules are there."""
    reported: set[str] = set()
    while time.time() - began < seconds:
        for at, alert in list(webhook.alerts):
            labels, summary = alert["labels"], alert["annotations"]["summary"]
            name = labels.get("cause", labels["alertname"])
            if at >= began and alert["status"] == "firing" and name not in reported:
                reported.add(name)
                say(
                    f"webhook, {at - began:.0f} s after it served again: "
                    f"{labels['alertname']}: {summary}"
                )
        if CAUSE in reported and reported & set(rules):
            return True
        time.sleep(0.5)
    return False


def main() -> None:
    """Make the demo's run where it is missing, then deploy, watch and break it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"))
    parser.add_argument("--out", type=Path, default=Path("runs/watch-demo"))
    options = parser.parse_args()
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        sys.exit(f"error: {' and '.join(missing)} are missing; apt-get install {' '.join(missing)}")
    if not (options.run / "decision.json").exists():
        say(f"no finished run in {options.run}: whet demo first, 5 to 8 minutes")
        whet("demo", "--resume", "-o", options.run.parent, "--name", options.run.name)
    say("deploy, watch, one fault, alarm: about 3 minutes")
    shutil.rmtree(options.out, ignore_errors=True)
    traffic = Run.read(options.run).require_spec().traffic
    assert traffic is not None, "the demo replays a log"
    arrived = demonstrate(options.run, traffic.log, options.out)
    print(
        "\nThe right alarm arrived in time." if arrived else "\nThe alarm did not arrive in time."
    )
    sys.exit(0 if arrived else 1)


if __name__ == "__main__":
    main()
