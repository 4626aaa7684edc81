"""A proxy before a real server that changes what its pages say, as gateways do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Rewrite = Callable[[str, str], str]
"""(path, page) → page, for every GET."""


@contextmanager
def rewriting_proxy(behind: str, rewrite: Rewrite) -> Iterator[str]:
    """The base URL of a proxy that forwards all to ``behind`` and rewrites what GET answers."""
    address = urlsplit(behind).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, kind, body = self._forward(None)
            self._answer(status, kind, rewrite(self.path, body.decode()).encode())

        def do_POST(self) -> None:
            self._answer(*self._forward(self.rfile.read(int(self.headers["Content-Length"]))))

        def _forward(self, body: bytes | None) -> tuple[int, str, bytes]:
            connection = HTTPConnection(address, timeout=120)
            headers = {"Content-Type": "application/json"}
            connection.request(self.command, self.path, body=body, headers=headers)
            answer = connection.getresponse()
            found = answer.status, answer.headers.get("Content-Type", ""), answer.read()
            connection.close()
            return found

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
