"""Logs of requests: one record, the reader of every form of log, and the checks over all rows."""

from whet.requests.checks import TokenCheck
from whet.requests.files import BLANK, INCOMPLETE
from whet.requests.reader import LogReader, only_model
from whet.requests.records import (
    LeftOut,
    LoggedRequest,
    describe_left_out,
    document_text,
    finding,
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
    "TokenCheck",
    "describe_left_out",
    "document_text",
    "finding",
    "media",
    "only_model",
    "part_text",
    "plain_messages",
]
