"""Forms of other vendors brought to OpenAI's: bodies, messages of blocks, answers and counts.

Read are Anthropic's messages, OpenAI's Responses, Gemini's contents, Bedrock's Converse and its
invocation log, Ollama, and exports of LiteLLM and Langfuse, under whichever names they have.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from whet.requests.log_times import Json, as_items, as_object, exact_number
from whet.requests.records import content_text

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
_CALLS: Final = ("toolUse", "functionCall")
_RESULTS: Final = ("toolResult", "functionResponse")
_MOST_TOKENS: Final = 10**12


def first_count(item: Mapping[str, Any], *keys: str) -> int | None:
    """The first of the keys that holds a number of tokens, also one that was logged as text."""
    return next((count for key in keys if (count := whole(item.get(key))) is not None), None)


def token_counts(answer: Json, levels: Sequence[Json]) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer as the log counts them, under whichever names."""
    places = [answer, *levels, as_object(levels[0].get("output")) or {}]
    holders = [as_object(each.get(key)) for each in places for key in _USAGES]
    rows = [*map(_langfuse, filter(None, holders)), *places]
    prompts = (count for row in rows if (count := _prompt_count(row)) is not None)
    outputs = (count for row in rows if (count := _output_count(row)) is not None)
    return next(prompts, None), next(outputs, None)


def _langfuse(usage: Json) -> Json:
    """Langfuse's usage has its counts under ``input`` and ``output``."""
    return {"input_tokens": usage.get("input"), "output_tokens": usage.get("output"), **usage}


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
            yield from _split(_without_functions(item))


def _split(message: Json) -> Iterator[Json]:
    """Results of a message's blocks, then the message with its calls and the rest."""
    if "parts" in message and "content" not in message:
        parts = message["parts"]
        message = {"role": message.get("role", "user"), "content": parts}
    role = message.get("role", message.get("type"))
    message = {**message, "role": _ROLES.get(str(role), role)}
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    sorted_out = [_block(block) for block in blocks]
    rest = [each for kind, each in sorted_out if kind == "other"]
    if len(rest) == len(blocks):
        yield message
        return
    yield from (_result(each) for kind, each in sorted_out if kind == "result")
    calls = [_call(each) for kind, each in sorted_out if kind == "call"]
    if rest or calls:
        yield {**message, "content": rest or None, **({"tool_calls": calls} if calls else {})}


def _without_functions(message: Json) -> Json:
    """A message of the old API with ``tool_calls`` in place of its function call."""
    call = as_object(message.get("function_call"))
    if call is None or message.get("tool_calls"):
        return message
    rest = {key: value for key, value in message.items() if key != "function_call"}
    return {**rest, "tool_calls": [{"type": "function", "function": call}]}


def _block(block: object) -> tuple[str, Any]:
    """What a part of a message is, and what it holds: a call, a result, a thought or another."""
    if not isinstance(block, dict):
        return "other", block
    for kind, keys in (("call", _CALLS), ("result", _RESULTS)):
        for key in keys:
            if isinstance(block.get(key), dict):
                return kind, block[key]
    if block.get("thought") or "reasoningContent" in block:
        return "thought", block
    kinds = {"tool_use": "call", "tool_result": "result", "thinking": "thought"}
    return kinds.get(str(block.get("type")), "other"), block


def _call(block: Json) -> Json:
    arguments = next((block[key] for key in ("input", "args", "arguments") if key in block), None)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    number = next((block[key] for key in ("call_id", "toolUseId", "id") if key in block), None)
    return {
        "id": number,
        "type": "function",
        "function": {"name": block.get("name"), "arguments": text},
    }


def _result(block: Json) -> Json:
    content = next((block[key] for key in ("content", "output", "response") if key in block), "")
    text = content_text(content) if isinstance(content, list) else content
    keys = ("tool_use_id", "toolUseId", "call_id", "id", "name")
    number = next((block[key] for key in keys if block.get(key)), None)
    return {
        "role": "tool",
        "tool_call_id": number,
        "content": text if isinstance(text, str) else json.dumps(text),
    }


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
    parts = [_block(block) for block in blocks]
    reasoning += [_thought(each) for kind, each in parts if kind == "thought"]
    calls += [_call(each) for kind, each in parts if kind == "call"]
    return {
        "output": content_text([each for kind, each in parts if kind == "other"]) or None,
        "reasoning": "".join(reasoning) or None,
        "tool_calls": tuple(calls),
    }


def _thought(block: Json) -> str:
    inner = as_object(block.get("reasoningContent")) or {}
    inner = as_object(inner.get("reasoningText")) or inner
    return content_text([block]) or str(inner.get("text") or "")


def streamed_answer(value: object) -> Json | None:
    """The completion that a stream's chunks, a list or their raw text, add up to; else None."""
    if isinstance(value, str) and value.lstrip().startswith(("data:", "event:")):
        lines = (line.removeprefix("data:").strip() for line in value.splitlines())
        value = [*filter(None, map(as_object, lines))]
        is_stream = bool(value)
    else:
        chunks = value if isinstance(value, list) else []
        is_stream = any(
            {"choices", "candidates"} & (as_object(each) or {}).keys() for each in chunks
        )
    if not is_stream or not isinstance(value, list):
        return None
    answer, usage, message = Json(), Json(), defaultdict[str, str](str)
    calls = defaultdict[Any, defaultdict[str, str]](lambda: defaultdict(str))
    for chunk in filter(None, map(as_object, value)):
        if chunk.get("type") == "response.completed":
            return as_object(chunk.get("response"))
        begun = as_object(chunk.get("message")) or {}
        for holder in (begun, chunk):
            usage |= as_object(holder.get("usage")) or {}
        answer |= {key: chunk[key] for key in ("usageMetadata", "model") if chunk.get(key)}
        choices = chunk.get("choices")
        first = as_object(choices[0]) if isinstance(choices, list) and choices else None
        delta = as_object((first or chunk).get("delta")) or {}
        text = (
            delta.get("text") or (first or {}).get("text") or answer_fields(chunk, 0).get("output")
        )
        delta = {"content": text, "reasoning_content": delta.get("thinking"), **delta}
        _add_texts(message, delta, "content", "reasoning_content", "reasoning")
        parts = delta.get("tool_calls")
        for part in filter(None, map(as_object, parts if isinstance(parts, list) else ())):
            call = as_object(part.get("function")) or {}
            _add_texts(calls[part.get("index")], call, "name", "arguments")
    tools = [{"type": "function", "function": dict(call)} for call in calls.values()]
    return {**answer, "usage": usage, "choices": [{"message": {**message, "tool_calls": tools}}]}


def _add_texts(texts: dict[str, str], more: Json, *keys: str) -> None:
    for key in keys:
        if isinstance(more.get(key), str):
            texts[key] += more[key]
