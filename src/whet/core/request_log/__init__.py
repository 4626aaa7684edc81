"""Logs of requests: OpenAI-style JSON lines, ShareGPT conversations, and plain prompts."""

from whet.core.request_log.parts import part_text
from whet.core.request_log.reader import LogReader, only_model
from whet.core.request_log.records import LeftOut, LoggedRequest

__all__ = ["LeftOut", "LogReader", "LoggedRequest", "only_model", "part_text"]
