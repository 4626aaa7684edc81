"""Forms of other vendors and of training sets brought to OpenAI's: bodies, blocks, answers, counts.

Read are Anthropic's messages, OpenAI's Responses, Gemini's contents, Bedrock's Converse and its
invocation log, Ollama, exports of LiteLLM and Langfuse, under whichever names they have, ShareGPT's
turns, and alpaca's instruction with its history.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from whet.requests.log_times import Json, as_items, as_object, exact_number
from whet.requests.records import (
    BAD_MESSAGES,
    NO_REQUEST,
    Broken,
    LoggedRequest,
    Unreadable,
    content_text,
    part_text,
)

_PROMPT_COUNTS: Final = (
    "prompt_tokens", "input_tokens", "inputTokens", "promptTokens", "prompt_eval_count",
    "promptTokenCount", "inputTokenCount", "input_token_count", "prompt_token_count",
    "prompt_tokens_count",
)  # fmt: skip
_OUTPUT_COUNTS: Final = (
    "completion_tokens", "output_tokens", "outputTokens", "completionTokens", "eval_count",
    "candidatesTokenCount", "outputTokenCount", "output_token_count", "completion_token_count",
    "output_tokens_count", "generated_tokens",
)  # fmt: skip
_CACHED_COUNTS: Final = (
    "cache_read_input_tokens", "cache_creation_input_tokens", "cacheReadInputTokens",
    "cacheWriteInputTokens", "input_cached_tokens", "input_cache_read", "input_cache_creation",
)  # fmt: skip
"""What Anthropic's ``input_tokens``, Converse's and Langfuse's counts leave out of a prompt."""
_USAGES: Final = (
    "usage", "usageMetadata", "usage_metadata", "token_usage", "usageDetails", "usage_details",
)  # fmt: skip
_TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
GROUPS: Final = (
    "model_parameters", "modelParameters", "optional_params", "extra_body", "invocation_params",
    "generationConfig", "generation_config", "inferenceConfig", "toolConfig", "options",
)  # fmt: skip
"""Objects of a line or of a body that hold more of the request's fields."""
OTHER_NAMES: Final[Mapping[str, str]] = {
    old: new
    for new, names in {
        "max_tokens": "maxOutputTokens max_output_tokens maxTokens max_new_tokens num_predict",
        "temperature": "temperature",
        "top_p": "topP",
        "top_k": "topK",
        "stop": "stopSequences stop_sequences",
        "presence_penalty": "presencePenalty",
        "frequency_penalty": "frequencyPenalty",
        "tools": "functions",
        "tool_choice": "function_call",
        "messages": "contents",
        "system": "systemInstruction system_instruction instructions system_prompt",
        "model": "modelId",
        "service_tier": "serviceTier",
    }.items()
    for old in names.split()
}
_ROLES: Final = {"model": "assistant", "ai": "assistant", "human": "user", "function": "tool"}
_INNER: Final = {
    "toolUse": "call", "functionCall": "call", "toolResult": "result", "functionResponse": "result"
}  # fmt: skip
"""What a block is, by the key of the object that it holds."""
_KINDS: Final = {"tool_use": "call", "tool_result": "result", "thinking": "thought"}
"""What a block is, by its type."""
_SSE: Final = re.compile(r"(?:(?:data|event|id|retry)?:.*|data|event|id|retry|)", re.DOTALL)
"""A line of a stream of server-sent events; one that begins with a colon is a comment."""
_CHUNK: Final = {"choices", "candidates", "created_at"}
"""Keys of a chunk, in a list or in lines."""
CONVERSATIONS: Final = ("conversations", "conversation")
"""Keys of the turns."""
_SPEAKERS: Final[Mapping[str, str]] = {
    name: role
    for role, names in {
        "user": "human user",
        "assistant": "gpt chatgpt bing bard assistant model function_call",
        "system": "system",
        "tool": "tool observation function_response",
    }.items()
    for name in names.split()
}
_MOST_TOKENS: Final = 10**12


def first_count(item: Mapping[str, Any], *keys: str) -> int | None:
    """The first of the keys that holds a number of tokens, also one that was logged as text."""
    return next((count for key in keys if (count := whole(item.get(key))) is not None), None)


def token_counts(answer: Json, levels: Sequence[Json]) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer as the log counts them, under whichever names."""
    places = [answer, *levels, as_object(levels[0].get("output")) or {}]
    holders = filter(None, (as_object(each.get(key)) for each in places for key in _USAGES))
    # Langfuse's usage has its counts under input and output.
    own = ({"input_tokens": u.get("input"), "output_tokens": u.get("output"), **u} for u in holders)
    rows = [*own, *places]
    prompts = (count for row in rows if (count := _prompt_count(row)) is not None)
    outputs = (count for row in rows if (count := _output_count(row)) is not None)
    return next(prompts, None), next(outputs, None)


def _prompt_count(row: Json) -> int | None:
    count = first_count(row, *_PROMPT_COUNTS)
    if count is None or "prompt_tokens" in row:
        return count
    return count + sum(whole(row.get(key)) or 0 for key in _CACHED_COUNTS)


def _output_count(row: Json) -> int | None:
    count = first_count(row, *_OUTPUT_COUNTS)
    return None if count is None else count + (whole(row.get("thoughtsTokenCount")) or 0)


def whole(value: object) -> int | None:
    """A whole number of tokens, also as text or as a float, which data frames make of it."""
    number = exact_number(value)
    is_whole = number is not None and 0 <= number < _MOST_TOKENS and number == int(number)
    return int(number) if number is not None and is_whole else None


def openai_body(levels: Sequence[Json], body: Json) -> Json:
    """The fields of a request's body under OpenAI's names, with those of groups next to it."""
    for key in GROUPS:
        for level in (*levels, body):
            body = {**(as_object(level.get(key)) or {}), **body}
    renamed = {new: body[old] for old, new in OTHER_NAMES.items() if body.get(old) is not None}
    body = {**renamed, **{key: value for key, value in body.items() if value is not None}}
    if "input" in body and {"messages", "prompt", "text_input"}.isdisjoint(body):
        text = [{"role": "user", "content": body["input"]}]
        body["messages"] = as_items(body["input"]) or text
    return body


def openai_tools(tools: Sequence[Json]) -> Iterator[Json]:
    """Tools with their schemas under ``function``; other tools stay as they are."""
    for each in tools:
        declared = each.get("functionDeclarations") or each.get("function_declarations")
        if items := as_items(declared):
            yield from openai_tools(items)
            continue
        tool = as_object(each.get("toolSpec")) or each
        keys = ("input_schema", "parameters", "inputSchema", "parametersJsonSchema")
        schema = next((tool[key] for key in keys if tool.get(key) is not None), None)
        if "function" in tool or "name" not in tool or (schema is None and tool is each):
            yield tool
            continue
        schema = (as_object(schema) or {}).get("json", schema)
        function = {"name": tool["name"], "description": tool.get("description")}
        yield {"type": "function", "function": {**function, "parameters": schema}}


def openai_choice(choice: object) -> object:
    """``tool_choice`` of Anthropic or ``function_call`` in OpenAI's form; others stay."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and "name" in choice and kind in ("tool", "function", None):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _TOOL_CHOICES.get(str(kind), choice)


def openai_messages(items: Sequence[Json]) -> Iterator[Json]:
    """Messages and items of any vendor as OpenAI's messages: calls and results are their own."""
    for item in items:
        kind = item.get("type")
        if kind == "reasoning":
            continue
        if kind == "function_call" and "role" not in item:
            yield {"role": "assistant", "content": None, "tool_calls": [_call(item)]}
        elif kind == "function_call_output":
            yield _result(item)
        else:
            yield from _split(item)


def _split(message: Json) -> Iterator[Json]:
    """Results of a message's blocks, then the message with its calls and the rest."""
    old = as_object(message.get("function_call"))
    if old is not None and not message.get("tool_calls"):
        rest = {key: value for key, value in message.items() if key != "function_call"}
        message = {**rest, "tool_calls": [{"type": "function", "function": old}]}
    if "parts" in message and "content" not in message:
        message = {"role": message.get("role", "user"), "content": message["parts"]}
    role = message.get("role", message.get("type"))
    message = {**message, "role": _ROLES.get(str(role), role)}
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    parts = _by_kind(blocks)
    if len(parts["other"]) == len(blocks):
        yield message
        return
    yield from map(_result, parts["result"])
    calls = list(map(_call, parts["call"]))
    if parts["other"] or calls:
        rest = {"tool_calls": calls} if calls else {}
        yield {**message, "content": parts["other"] or None, **rest}


def _by_kind(blocks: Sequence[Any]) -> dict[str, list[Any]]:
    """The parts of a message by what they are: a call, a result, a thought or other."""
    parts = defaultdict[str, list[Any]](list)
    for block in blocks:
        item = block if isinstance(block, dict) else {}
        holder = next((key for key in _INNER if isinstance(item.get(key), dict)), None)
        if holder is not None:
            parts[_INNER[holder]].append(item[holder])
        elif item.get("thought") or "reasoningContent" in item:
            parts["thought"].append(item)
        else:
            parts[_KINDS.get(str(item.get("type")), "other")].append(block)
    return parts


def _call(block: Json) -> Json:
    arguments = next((block[key] for key in ("input", "args", "arguments") if key in block), None)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    number = next((block[key] for key in ("call_id", "toolUseId", "id") if key in block), None)
    function = {"name": block.get("name"), "arguments": text}
    return {"id": number, "type": "function", "function": function}


def _result(block: Json) -> Json:
    content = next((block[key] for key in ("content", "output", "response") if key in block), "")
    if isinstance(content, list):
        inner = (each.get("json") if isinstance(each, dict) else None for each in content)
        parts = [
            each if own is None else json.dumps(own)
            for each, own in zip(content, inner, strict=True)
        ]
        is_text = all(part_text(each) is not None for each in parts)
        content = content_text(parts) if is_text else parts  # parts show media
    keys = ("tool_use_id", "toolUseId", "call_id", "id", "name")
    number = next((block[key] for key in keys if block.get(key)), None)
    content = content if isinstance(content, str | list) else json.dumps(content)
    return {"role": "tool", "tool_call_id": number, "content": content}


def answer_fields(answer: Json, index: int) -> Json:
    """Text, reasoning and calls of choice ``index``; empty where the log has no answer.

    A completion of several prompts has one choice for each; Gemini has candidates, Responses a list
    of items, Converse a message under ``output``.
    """
    choices = answer.get("choices", answer.get("candidates"))
    output = answer.get("output")
    if isinstance(choices, list) and len(choices) > index:
        choice = as_object(choices[index]) or {}
        message = as_object(choice.get("message")) or as_object(choice.get("content"))
        if message is None:
            text = choice.get("text")
            return {"output": text if isinstance(text, str) and text else None}
        return _message_fields([message])
    if index:
        return {}
    if (items := as_items(output)) is not None:
        return _message_fields(items)
    message = as_object(answer.get("message")) or as_object(
        (as_object(output) or {}).get("message")
    )
    if message is None and "content" in answer:
        message = answer
    return {} if message is None else _message_fields([message])


def _message_fields(items: Sequence[Json]) -> Json:
    blocks, calls, reasoning = list[Any](), list[Json](), list[str]()
    for item in items:
        if item.get("type") == "function_call":
            calls.append(_call(item))
            continue
        content = item.get("content", item.get("parts"))
        blocks += content if isinstance(content, list) else [content]
        made = item.get("tool_calls")
        calls += [each for each in made if isinstance(each, dict)] if isinstance(made, list) else []
        thoughts = (item.get("reasoning_content"), item.get("reasoning"), item.get("summary"))
        reasoning += [content_text(each) for each in thoughts if each][:1]
    parts = _by_kind(blocks)
    return {
        "output": content_text(parts["other"]) or None,
        "reasoning": "".join([*reasoning, *map(_thought, parts["thought"])]) or None,
        "tool_calls": (*calls, *map(_call, parts["call"])),
    }


def _thought(block: Json) -> str:
    inner = as_object(block.get("reasoningContent")) or {}
    inner = as_object(inner.get("reasoningText")) or inner
    return content_text([block]) or str(inner.get("text") or "")


def streamed_answer(value: object) -> Json | None:
    """The completion that a stream's chunks, a list or their raw text, add up to; else None."""
    chunks = _chunks(value)
    if chunks is None:
        return None
    answer, usage, message = Json(), Json(), defaultdict[str, str](str)
    calls = defaultdict[Any, defaultdict[str, str]](lambda: defaultdict(str))
    for chunk in chunks:
        if chunk.get("type") == "response.completed":
            return as_object(chunk.get("response"))
        for holder in (as_object(chunk.get("message")) or {}, chunk):
            usage |= as_object(holder.get("usage")) or {}
        answer |= {key: chunk[key] for key in ("usageMetadata", "model") if chunk.get(key)}
        choices = chunk.get("choices")
        first = as_object(choices[0]) if isinstance(choices, list) and choices else None
        delta = as_object((first or chunk).get("delta")) or {}
        is_text = chunk.get("type") == "response.output_text.delta"
        written = chunk.get("delta" if is_text else "response")
        texts = (delta.get("text"), (first or {}).get("text"), written)
        text = next(filter(None, texts), answer_fields(chunk, 0).get("output"))
        delta = {"content": text, "reasoning_content": delta.get("thinking"), **delta}
        _add_texts(message, delta, "content", "reasoning_content", "reasoning")
        parts = delta.get("tool_calls")
        for part in filter(None, map(as_object, parts if isinstance(parts, list) else ())):
            call = as_object(part.get("function")) or {}
            _add_texts(calls[part.get("index")], call, "name", "arguments")
    tools = [{"type": "function", "function": dict(call)} for call in calls.values()]
    return {**answer, "usage": usage, "choices": [{"message": {**message, "tool_calls": tools}}]}


def _chunks(value: object) -> list[Json] | None:
    """The objects of a stream that was logged as a list, as lines or as events; else None."""
    if isinstance(value, list) and {*map(type, value)} == {str}:
        value = "\n\n".join(value)
    if isinstance(value, str):
        lines = re.split(r"\r\n?|\n", value.strip("\ufeff\r\n "))
        if 2 * sum(_SSE.fullmatch(line) is not None for line in lines) > len(lines):
            events = (each.split("\n") for each in "\n".join(lines).split("\n\n"))
            data = [[line[5:] for line in each if line[:5] == "data:"] for each in events]
            whole = [[made] if (made := as_object("\n".join(each))) else each for each in data]
            chunks = [*filter(None, (as_object(each) for row in whole for each in row))]
            if chunks or "[DONE]" in value:
                return chunks
        objects = [*map(as_object, lines)] if len(lines) > 1 else []
        value = objects if all(each and _CHUNK & each.keys() for each in objects) else []
    rows = [*filter(None, map(as_object, value if isinstance(value, list) else ()))]
    return rows if any(_CHUNK & each.keys() for each in rows) else None


def _add_texts(texts: dict[str, str], more: Json, *keys: str) -> None:
    for key in keys:
        if isinstance(more.get(key), str):
            texts[key] += more[key]


def alpaca(item: Json) -> Json:
    """A row of instruction, input, output and history as a chat."""
    history = item.get("history")
    pairs = history if isinstance(history, list) else []
    turns = [text for pair in pairs for text in pair] if all(map(_is_pair, pairs)) else [None]
    texts = [
        *turns,
        "\n".join(str(text) for key in ("instruction", "input") if (text := item.get(key))),
    ]
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, "system": item.get("system"), "tools": item.get("tools")}


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, str]


def sharegpt(turns: object, *, system: str | None, place: str) -> list[LoggedRequest]:
    """A request for each answer to a user's turn; turns before the first of these stay out."""
    rows = as_items(turns)
    if rows is None:
        raise Broken(BAD_MESSAGES)
    requests: list[LoggedRequest] = []
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for turn in rows:
        role = _SPEAKERS.get(str(turn.get("from", turn.get("role"))))
        text = turn.get("value", turn.get("content"))
        if role is None or not isinstance(text, str):
            raise Broken(BAD_MESSAGES)
        if role == "assistant" and not any(each["role"] == "user" for each in messages):
            continue
        if role == "assistant" and messages[-1]["role"] != "assistant":
            number = len(requests) + 1
            requests.append(
                LoggedRequest(
                    place=f"{place}#{number}",
                    turn=number,
                    messages=tuple(messages),
                    output=text or None,
                )
            )
        messages.append({"role": role, "content": text})
    if not requests:
        raise Unreadable(NO_REQUEST)
    return requests
