"""A process that says what SGLang says: a log, pages and counters from ``recorded``.

Run as ``python fake_sglang.py LOG PORT MODEL_PATH``. Without a folder at MODEL_PATH it ends as
SGLang does.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
COUNTED = {"requests": 0, "prompt": 0, "generated": 0}
METRICS = """sglang:num_requests_total{is_streaming="false"} %(requests)s.0
sglang:prompt_tokens_total{is_streaming="false"} %(prompt)s.0
sglang:uncached_prompt_tokens_histogram_sum{} %(prompt)s.0
sglang:generation_tokens_total{is_streaming="false"} %(generated)s.0
"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        info = json.loads((RECORDED / "sglang_server_info.json").read_text())
        card = {"id": Path(sys.argv[3]).name, "max_model_len": 2048}
        pages = {
            "/health": "",
            "/server_info": json.dumps(info | {"disable_radix_cache": True}),
            "/v1/models": json.dumps({"data": [card]}),
            "/metrics": METRICS % COUNTED,
        }
        self.answer(200 if self.path in pages else 404, pages.get(self.path, ""))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = len(body["prompt"])
        COUNTED["requests"] += 1
        COUNTED["prompt"] += prompt
        COUNTED["generated"] += body["max_tokens"]
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        self.answer(200, json.dumps({"choices": [{"text": " fine"}], "usage": usage}))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    if not Path(sys.argv[3]).is_dir():
        sys.exit(f"OSError: Can't load the configuration of '{sys.argv[3]}'. If you were trying")
    print((RECORDED / sys.argv[1]).read_text(), flush=True)
    held = bytearray(20_000_000)  # as much memory as a server takes at least
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
