"""A scripted server process: it prints, serves, dies, hangs or forks as its first argument says.

Run as ``python fake_engine.py MODE PORT MARK``; MARK tells one test run's processes from
another's. It speaks just enough HTTP for health and one completion.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLEEPER = "import time; time.sleep(600)"


class Handler(BaseHTTPRequestHandler):
    mode = "serve"

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "fake"}], "version": "9.9"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.mode == "mute":
            time.sleep(600)
        if self.mode == "sick":
            print("(EngineCore pid=7) ERROR 01-01 00:00:00 [core.py:1] ", flush=True)
            print("RuntimeError: synthetic sampler exploded", flush=True)
            return self._answer(500, {"error": {"message": "EngineCore encountered an issue"}})
        tokens = 0 if self.mode == "empty" else 8
        body = {"choices": [{"text": " fine"}], "usage": {"completion_tokens": tokens}}
        return self._answer(200, body)

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def last_words(mode: str) -> None:
    """Modes that print and die."""
    words = {
        "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "kv": "ValueError: To serve at least one request with the model's max seq len (8192), (4.0 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB). "
        "Based on the available memory, the estimated maximum model length is 2048. Try increasing",
        "arch": "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Try",
        "no_gpu": "RuntimeError: No CUDA GPUs are available",
        "port": "OSError: [Errno 98] Address already in use",
        "secret": f"ValueError: bad token {os.environ.get('FAKE_TOKEN', '')} in the request",
        "silent": "",
    }
    if mode in words:
        print("INFO 01-01 00:00:00 [main.py:1] starting", flush=True)
        print(words[mode], flush=True)
        sys.exit(1)


def once(mode: str) -> str:
    """``flaky:KIND:FOLDER`` dies of KIND the first time and serves the second."""
    if not mode.startswith("flaky:"):
        return mode
    _, kind, folder = mode.split(":", 2)
    mark = Path(folder) / "was-here"
    if mark.exists():
        return "serve"
    mark.touch()
    return kind


def main() -> None:
    mode, port = once(sys.argv[1]), int(sys.argv[2])
    last_words(mode)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        print("INFO 01-01 00:00:00 [main.py:1] loading the weights", flush=True)
        time.sleep(600)
    if mode in {"family", "stubborn"}:
        # One child in a session of its own: it leaves the process group, as a worker may.
        subprocess.Popen([sys.executable, "-c", SLEEPER, sys.argv[3]], start_new_session=True)
        subprocess.Popen([sys.executable, "-c", SLEEPER, sys.argv[3]])
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Handler.mode = mode
    print(
        f"INFO 01-01 00:00:00 [main.py:1] serving with {os.environ.get('FAKE_TOKEN')}", flush=True
    )
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
