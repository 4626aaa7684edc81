"""OpenAI-compatible HTTP/1.1 with timestamps taken at the socket: it measures, and it probes."""

from whet.client.calls import CompletionCall
from whet.client.counters import parse_counters, scrape
from whet.client.endpoint import Endpoint
from whet.client.runner import run_async
from whet.client.simple import Failure, HttpError, get_json, get_text, post_many
from whet.client.stream import StreamClient, read_event
from whet.client.wire import Exchange

__all__ = [
    "CompletionCall",
    "Endpoint",
    "Exchange",
    "Failure",
    "HttpError",
    "StreamClient",
    "get_json",
    "get_text",
    "parse_counters",
    "post_many",
    "read_event",
    "run_async",
    "scrape",
]
