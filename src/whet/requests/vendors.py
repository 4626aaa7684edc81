"""Forms of other vendors brought to OpenAI's: tools, messages of blocks, answers and counts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from whet.requests.log_times import Json, as_object, exact_number
from whet.requests.records import content_text

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
    """``tool_choice`` of Anthropic or ``function_call`` in OpenAI's form; others stay."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and "name" in choice and kind in ("tool", None):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _TOOL_CHOICES.get(str(kind), choice)


def openai_messages(messages: Sequence[Json]) -> Iterator[Json]:
    """Messages whose blocks or functions are calls or their results, in OpenAI's form."""
    for message in map(_without_functions, messages):
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        rest = [block for block in blocks if _kind(block) not in ("tool_use", "tool_result")]
        if len(rest) == len(blocks):
            yield message
            continue
        for block in blocks:
            if _kind(block) == "tool_result":
                text = content_text(block.get("content"))
                yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
        calls = tool_calls(blocks)
        if rest or calls:
            yield {**message, "content": rest or None, **({"tool_calls": calls} if calls else {})}


def _without_functions(message: Json) -> Json:
    """A message of the old API with ``tool_calls`` in place of its function call or result."""
    call = as_object(message.get("function_call"))
    if call is not None and not message.get("tool_calls"):
        rest = {key: value for key, value in message.items() if key != "function_call"}
        return {**rest, "tool_calls": [{"type": "function", "function": call}]}
    return {**message, "role": "tool"} if message.get("role") == "function" else message


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
        "output": content_text([block for block in blocks if block not in thoughts]) or None,
        "reasoning": content_text(thoughts) or None,
        "tool_calls": tuple(tool_calls(blocks)),
    }


def _kind(block: object) -> str | None:
    return str(block.get("type")) if isinstance(block, dict) else None


def streamed_answer(value: object) -> Json | None:
    """The completion that a stream's chunks, a list or their raw text, add up to; else None."""
    if isinstance(value, str) and value.lstrip().startswith(("data:", "event:")):
        lines = (line.removeprefix("data:").strip() for line in value.splitlines())
        value = [*filter(None, map(as_object, lines))]
        is_stream = bool(value)
    else:
        chunks = value if isinstance(value, list) else []
        is_stream = any("choices" in (as_object(each) or {}) for each in chunks)
    if not is_stream or not isinstance(value, list):
        return None
    answer, message = Json(), defaultdict[str, str](str)
    calls = defaultdict[Any, defaultdict[str, str]](lambda: defaultdict(str))
    for chunk in filter(None, map(as_object, value)):
        answer |= {key: chunk[key] for key in ("usage", "model") if chunk.get(key)}
        choices = chunk.get("choices")
        first = as_object(choices[0]) if isinstance(choices, list) and choices else None
        delta = as_object((first or {}).get("delta")) or {"content": (first or {}).get("text")}
        _add_texts(message, delta, "content", "reasoning_content", "reasoning")
        parts = delta.get("tool_calls")
        for part in filter(None, map(as_object, parts if isinstance(parts, list) else ())):
            call = as_object(part.get("function")) or {}
            _add_texts(calls[part.get("index")], call, "name", "arguments")
    tools = [{"type": "function", "function": dict(call)} for call in calls.values()]
    return {**answer, "choices": [{"message": {**message, "tool_calls": tools}}]}


def _add_texts(texts: dict[str, str], more: Json, *keys: str) -> None:
    for key in keys:
        if isinstance(more.get(key), str):
            texts[key] += more[key]
