"""Logs of requests: OpenAI-style JSON lines, ShareGPT conversations, and plain prompts."""

from whet.requests.checks import count_doubt
from whet.requests.files import BLANK, INCOMPLETE, check_file, open_log
from whet.requests.reader import LogReader, only_model
from whet.requests.records import (
    LeftOut,
    LoggedRequest,
    describe_left_out,
    document_text,
    media,
    part_text,
    plain_messages,
)

__all__ = [
    "BLANK",
    "INCOMPLETE",
    "LeftOut",
    "LogReader",
    "LoggedRequest",
    "check_file",
    "count_doubt",
    "describe_left_out",
    "document_text",
    "media",
    "only_model",
    "open_log",
    "part_text",
    "plain_messages",
]
