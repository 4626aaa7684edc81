"""Generate the demo's request log: what a gateway would write of a support desk's model.

Most requests are behind one of a few shared system prompts, some are conversations, and they come
in bursts. The answers are the generator's own. The file is a pure function of the seed.

    python -m lab.chat_log     writes the log of seed 0 beside the demo, compressed
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from lab.text import Dice, Exchange, draw_system
from lab.text.extraction import extraction
from lab.text.letters import letter
from lab.text.system import SystemPrompt
from lab.tokenizer import load_tokenizer
from whet.core.store import write_atomic
from whet.demo.bundled import CHAT_LOG, pair_paths

CONVERSATIONS: Final = 1400
TURNS: Final = (1, 2, 3)
TURN_SHARES: Final = (0.85, 0.1, 0.05)
SHARED_SHARE: Final = 0.7
LONG_SHARE: Final = 0.15
SHARED_SYSTEMS: Final = {"short": 4, "long": 2}
RATE_RPS: Final = 5.0
BURSTINESS: Final = 0.5
MOST_TOKENS: Final = (950, 120)
"""Of a prompt and of an answer."""
START_S: Final = 1_790_000_000
MIX: Final = ((extraction, 0.7), (letter, 0.3))


def generate(seed: int) -> list[dict[str, Any]]:
    """The lines of the log, in the order of their times."""
    tokenizer = load_tokenizer(pair_paths()[0])
    random = np.random.default_rng(seed)
    shared = {
        size: [draw_system(Dice("log", size, seed, at), "heldout", size) for at in range(count)]
        for size, count in SHARED_SYSTEMS.items()
    }
    talks = [_conversation(seed, index, shared, tokenizer) for index in range(CONVERSATIONS)]
    waiting = {index: list(talk) for index, talk in enumerate(talks)}
    lines, at_s = [], float(START_S)
    while waiting:
        at_s += float(random.gamma(BURSTINESS, 1 / (RATE_RPS * BURSTINESS)))
        # Some twenty conversations are open at a time.
        index = int(random.choice(list(waiting)[:20]))
        lines.append({"timestamp": round(at_s, 3), **waiting[index].pop(0)})
        if not waiting[index]:
            del waiting[index]
    return lines


def _conversation(
    seed: int, index: int, shared: dict[str, list[SystemPrompt]], tokenizer: Any
) -> Iterator[dict[str, Any]]:
    """One request a turn; turns that would be too long are drawn again."""
    dice = Dice("log", "conversation", seed, index)
    random = np.random.default_rng([seed, index])
    size = "long" if random.random() < LONG_SHARE else "short"
    own = random.random() >= SHARED_SHARE
    system = (
        draw_system(dice, "heldout", size)
        if own
        else shared[size][int(random.integers(len(shared[size])))]
    )
    turns = int(random.choice(TURNS, p=TURN_SHARES))
    messages = [{"role": "system", "content": system.text}]
    attempt = done = 0
    while done < turns:
        item = _exchange(Dice("log", "turn", seed, index, attempt), system)
        attempt += 1
        prompt = [*messages, *(message.as_dict() for message in item.prompt())]
        lengths = _tokens(tokenizer, prompt), len(tokenizer.encode(item.reply).ids)
        if attempt > 50:
            return
        if any(length > most for length, most in zip(lengths, MOST_TOKENS, strict=True)):
            continue
        done += 1
        answer = {"role": "assistant", "content": item.reply}
        yield _line(f"c{index:04d}", prompt, answer, lengths)
        messages = [*prompt, answer]


def _exchange(dice: Dice, system: SystemPrompt) -> Exchange:
    return dice.weighted(MIX)(dice, "heldout", system)


def _tokens(tokenizer: Any, messages: Sequence[dict[str, str]]) -> int:
    return sum(len(tokenizer.encode(each["content"]).ids) + 3 for each in messages)


def _line(
    session: str,
    messages: Sequence[dict[str, str]],
    answer: dict[str, str],
    lengths: tuple[int, int],
) -> dict[str, Any]:
    return {
        "session_id": session,
        "request": {"model": "support-desk", "messages": messages, "temperature": 0},
        "response": {
            "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": lengths[0], "completion_tokens": lengths[1] + 1},
        },
    }


if __name__ == "__main__":
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in generate(seed=0))
    write_atomic(CHAT_LOG, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
