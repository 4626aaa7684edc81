"""Fuzz the client's parser offline: mutated answers, cut at random, against what always holds.

    python -m tests.client.fuzz_wire --inputs 10000000 --seed 0 --seconds 3600

An input is an answer with up to eight mutations. It and a random cut of it give the same record,
with the client's own words, and a connection with something unread is not used again. An input that
breaks this is printed and ends the run with code 1.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter

from tests.client.fed import Fed, pieces, verdict

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
STREAM = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"h\xc3\xa9"},"token_ids":[5]}]}\n\n'
    b": ping\n\n"
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"name":"f","arguments":'
    b'"{}"}}]},"finish_reason":"stop"}]}\r\n\r\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":1}}}\n\ndata: [DONE]\n\n'
)
TEXTS = (
    b'data: {"choices":[{"index":0,"text":"a"}]}\n\ndata: {"choices":[{"index":0,"text":"b",'
    b'"finish_reason":"length"}],"usage":{"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
REFUSAL = b'{"error":{"message":"too long","code":400}}'
ERROR = b'event: error\ndata: {"message": "lost"}\n\n'
TOKENS = [
    token.encode().decode("unicode_escape").encode("latin-1")
    for token in r"""\r\n|\n|\r|\n\n|\r\n\r\n|0\r\n\r\n|ffffffffffffffff\r\n|5;x=y\r\n|-1\r\n|data:
data: [DONE]\n\n|event: error\n|error: |: |id: 1\n|\xef\xbb\xbf|\xff|\xed\xa0\x80|\x00|\x1b[2J
\\ud800|\\u0000|[|]]]]]]]]]|null|true|NaN|Infinity|-0|1e999|"choices":|"delta":|"text":|"index":1,
"content":[{"text":"p"}],|"usage":|"error":|"completion_tokens":99999,|"object":"error",
"detail":"x",|"finish_reason":"abort",|HTTP/1.1 100 Continue\r\n\r\n|HTTP/1.0 200 OK\r\n
HTTP/1.1 103 Early\r\nA: b\r\n\r\n|HTTP/1.1 101 Switch\r\n\r\n|HTTP/1.1 204 None\r\n\r\n
HTTP/2 200\r\n|Content-Length: 3\r\n|Content-Length: 99999999999999999999\r\n|Trailer: x\r\n
Transfer-Encoding: chunked\r\n|Connection: close\r\n|Transfer-Encoding: gzip\r\n|Location: /x\r\n
Content-Encoding: gzip\r\n""".replace("\n", "|").split("|")
] + [b"{" * 40, b"[" * 2000, b"9" * 30, b"9" * 5000]


def chunked(body: bytes, size: int) -> bytes:
    parts = (body[at : at + size] for at in range(0, len(body), size))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


BODIES = (STREAM, TEXTS, TEXTS + ERROR)
SEEDS = (
    *(chunked(body, size) for body in BODIES for size in (7, 64, 4096)),
    HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(STREAM), STREAM),
    HEAD + b"\r\n" + STREAM,
    b"HTTP/1.1 400 Bad\r\nContent-Length: 43\r\n\r\n" + REFUSAL,
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One change: a token or a piece put in, a piece taken out or moved, a byte turned."""
    at, end = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    low, high, kind = min(at, end), min(max(at, end), min(at, end) + 64), rng.randrange(6)
    if kind == 0:
        return data[:at] + rng.choice(TOKENS) + data[at:]
    if kind == 1:
        return data[:low] + data[high:]
    if kind == 2:
        return data[:at] + data[low:high] + data[at:]
    if kind == 3:
        return data[:low] + rng.choice(TOKENS) + data[high:]
    if kind == 4 and data:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    return data[:at] if kind == 5 and rng.random() < 0.3 else data


def check(data: bytes, rng: random.Random) -> object:
    cuts = [rng.randrange(len(data) + 1) for _ in range(rng.randrange(6))]
    closed = rng.random() < 0.5
    whole = verdict(data, (), closed=closed)
    assert verdict(data, cuts, closed=closed) == whole, (cuts, closed)
    connection = Fed()
    connection.answer(list(pieces(data, cuts)), closed=False)
    connection.more(b"\x01")
    assert not connection.reusable, (cuts, "something is unread")
    return whole[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    os.environ.clear()  # else most of the time is spent looking for secrets in it
    rng, words, began, done = random.Random(options.seed), Counter[object](), time.monotonic(), 0
    while done < options.inputs and time.monotonic() - began < options.seconds:
        framed = rng.random() < 0.5  # else the body is mutated, and framed rightly
        data = rng.choice(SEEDS if framed else BODIES)
        for _ in range(rng.randrange(9)):
            data = mutate(data, rng)
        data = data if framed else chunked(data, rng.choice((16, 4096)))
        try:
            words[check(data, rng)] += 1
        except Exception as error:
            print(f"input {done}: {error!r}\n{data!r}")
            return 1
        done += 1
        if done % 100_000 == 0:
            print(f"{done:,} inputs, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done:,} inputs, {time.monotonic() - began:.0f} s: {dict(words.most_common())}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
