"""Forms of other vendors brought to OpenAI's: tools, messages of blocks, answers and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from whet.core.log_times import Json, as_object, exact_number
from whet.core.request_log.content import part_text

_PROMPT_COUNTS: Final = (
    "prompt_tokens", "input_tokens", "inputTokens", "promptTokens", "prompt_eval_count",
    "promptTokenCount", "inputTokenCount", "input_token_count", "prompt_token_count",
)  # fmt: skip
_OUTPUT_COUNTS: Final = (
    "completion_tokens", "output_tokens", "outputTokens", "completionTokens", "eval_count",
    "candidatesTokenCount", "outputTokenCount", "output_token_count", "completion_token_count",
    "generated_tokens",
)  # fmt: skip
_CACHED_COUNTS: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""What Anthropic's ``input_tokens`` leave out of a prompt."""
_USAGES: Final = ("usage", "usageMetadata", "token_usage")
_TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_MOST_TOKENS: Final = 10**12


def first_count(item: Mapping[str, Any], *keys: str) -> int | None:
    """The first of the keys that holds a number of tokens, also one that was logged as text."""
    return next((count for key in keys if (count := _count(item.get(key))) is not None), None)


def token_counts(answer: Json, levels: Sequence[Json]) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer as the log counts them, under whichever names."""
    holders = [as_object(each.get(key)) for each in (answer, *levels) for key in _USAGES]
    rows = [each for each in (*holders, answer, *levels) if each]
    prompts = (count for row in rows if (count := _prompt_count(row)) is not None)
    outputs = (count for row in rows if (count := first_count(row, *_OUTPUT_COUNTS)) is not None)
    return next(prompts, None), next(outputs, None)


def _prompt_count(row: Json) -> int | None:
    count = first_count(row, *_PROMPT_COUNTS)
    if count is None or "input_tokens" not in row or "prompt_tokens" in row:
        return count
    return count + sum(_count(row.get(key)) or 0 for key in _CACHED_COUNTS)


def _count(value: object) -> int | None:
    """A whole number of tokens, also as text or as a float, which data frames make of it."""
    number = exact_number(value)
    whole = number is not None and 0 <= number < _MOST_TOKENS and number == int(number)
    return int(number) if number is not None and whole else None


def openai_tool(tool: Json) -> Json:
    """A tool with its schema under ``function``; others stay as they are."""
    schema = tool.get("input_schema", tool.get("parameters"))
    if "function" in tool or "name" not in tool or schema is None:
        return tool
    function = {"name": tool["name"], "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": schema}}


def openai_choice(choice: object) -> object:
    """Anthropic's ``tool_choice`` in OpenAI's form; others stay as they are."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _TOOL_CHOICES.get(str(kind), choice)


def openai_messages(messages: Sequence[Json]) -> Iterator[Json]:
    """Messages whose blocks use tools or hold their results, in OpenAI's form."""
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        rest = [block for block in blocks if _kind(block) not in ("tool_use", "tool_result")]
        if len(rest) == len(blocks):
            yield message
            continue
        for block in blocks:
            if _kind(block) == "tool_result":
                text = _text(block.get("content"))
                yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
        calls = tool_calls(blocks)
        if rest or calls:
            yield {**message, "content": rest or None, **({"tool_calls": calls} if calls else {})}


def tool_calls(blocks: Sequence[Any]) -> list[Json]:
    """The calls that an answer's blocks make."""
    return [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input"))},
        }
        for block in blocks
        if _kind(block) == "tool_use"
    ]


def block_output(blocks: Sequence[Any]) -> Json:
    """Text, reasoning and calls of an answer of blocks."""
    thoughts = [block for block in blocks if _kind(block) == "thinking"]
    return {
        "output": _text([block for block in blocks if block not in thoughts]) or None,
        "reasoning": _text(thoughts) or None,
        "tool_calls": tuple(tool_calls(blocks)),
    }


def _kind(block: object) -> str | None:
    return str(block.get("type")) if isinstance(block, dict) else None


def _text(content: object) -> str:
    parts = content if isinstance(content, list) else [content]
    return "".join(part_text(part) or "" for part in parts)
