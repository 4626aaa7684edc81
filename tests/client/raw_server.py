"""A server that answers each request of a connection with bytes that a test wrote."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
PIECE_S = 0.02
"""Seconds between two pieces of an answer: they are two reads of the client's socket."""

Answer = Callable[[bytes], Sequence[bytes]]


def read_request(peer: socket.socket) -> bytes:
    """One whole request; empty where the client has closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := peer.recv(65536)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = LENGTH.search(head)
    while length is not None and len(body) < int(length[1]):
        body += peer.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(answer: Answer, host: str = "127.0.0.1") -> Iterator[tuple[str, list[int]]]:
    """The URL, and the number of requests of each connection; an empty piece closes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=128)
    counts: list[int] = []

    def serve(peer: socket.socket, number: int) -> None:
        with peer, suppress(ConnectionError):
            while request := read_request(peer):
                counts[number] += 1
                for index, piece in enumerate(answer(request)):
                    time.sleep(PIECE_S * (index > 0))
                    if not piece:
                        return
                    peer.sendall(piece)

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            counts.append(0)
            threading.Thread(target=serve, args=(peer, len(counts) - 1), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    yield f"http://{shown}:{listener.getsockname()[1]}", counts
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)
