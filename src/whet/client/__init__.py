"""OpenAI-compatible HTTP/1.1 with timestamps taken at the socket: it measures, and it probes."""

from whet.client.calls import CompletionCall
from whet.client.counters import parse_counters, scrape
from whet.client.endpoint import Endpoint
from whet.client.errors import HttpError
from whet.client.many import Completion, Failure, complete_many, post_many
from whet.client.runner import run_async
from whet.client.simple import get_text, post_json
from whet.client.stream import StreamClient, read_event
from whet.client.wire import Exchange

__all__ = [
    "Completion",
    "CompletionCall",
    "Endpoint",
    "Exchange",
    "Failure",
    "HttpError",
    "StreamClient",
    "complete_many",
    "get_text",
    "parse_counters",
    "post_json",
    "post_many",
    "read_event",
    "run_async",
    "scrape",
]
