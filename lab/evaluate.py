"""Score the demo pair: tasks, perplexity, acceptance length, and what damage to the target costs.

python -m lab.evaluate --pair build/pair --out build/scores.json
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from lab.damage import DAMAGES, damaged
from lab.data import encode_chat
from lab.generate import greedy, pad
from lab.model import Llama, load_model
from lab.text import Dice, Message
from lab.tokenizer import END_ID, load_tokenizer, render
from whet.data import write_inputs
from whet.quality.scoring import right

DRAFT_TOKENS = 4
PROMPT_COUNT = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """Greedy speculation: tokens a step (1 + accepted / drafts), and acceptance by position."""

    length: float
    by_position: tuple[float, ...]
    drafts: int


def task_scores(
    model: Llama, tokenizer: Tokenizer, tasks: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[int, int]]:
    """Right answers and questions by task."""
    prompts = [_prompt(tokenizer, _messages(task["messages"])) for task in tasks]
    answers = greedy(model, prompts, [task["max_tokens"] for task in tasks])
    tally: dict[str, list[bool]] = defaultdict(list)
    for task, answer in zip(tasks, answers, strict=True):
        mark = right(tokenizer.decode(answer), task["expected"], task["scorer"])
        tally[task["task"]].append(mark)
    return {name: (sum(marks), len(marks)) for name, marks in tally.items()}


@torch.inference_mode()
def perplexity(
    model: Llama, tokenizer: Tokenizer, chats: Sequence[Mapping[str, Any]]
) -> tuple[float, float]:
    """Perplexity over all tokens, and over reply tokens only."""
    device = next(model.parameters()).device
    sums = torch.zeros(2, 2, dtype=torch.float64)
    for chat in chats:
        ids, reply = encode_chat(tokenizer, _messages(chat["messages"]))
        row = torch.tensor([ids], device=device)
        each = functional.cross_entropy(
            model(row[:, :-1])[0].float(), row[0, 1:], reduction="none"
        ).double()
        mask = torch.tensor(reply[1:], device=device) > 0
        sums[0] += torch.stack((each.sum(), torch.tensor(float(len(each))).to(each))).cpu()
        sums[1] += torch.stack(((each * mask).sum(), mask.sum().to(each))).cpu()
    every, replies = (math.exp(float(total / count)) for total, count in sums)
    return every, replies


def acceptance(
    target: Llama, draft: Llama, prompts: Sequence[Sequence[int]], limit: int
) -> Acceptance:
    """Acceptance of a greedy draft by a greedy target, ``DRAFT_TOKENS`` a step.

    Where the draft agrees it has seen the target's own text, so its choices given that text decide
    every step, and one pass over the text is enough (arXiv 2211.17192, section 2.2, temperature 0).
    """
    outputs = [[*row, END_ID] for row in greedy(target, prompts, [limit] * len(prompts))]
    accepted = [0] * DRAFT_TOKENS
    drafts = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        agrees = _agreement(draft, prompt, output)
        place = 1
        while place < len(output):
            run = 0
            while run < DRAFT_TOKENS and place + run < len(output) and agrees[place + run]:
                accepted[run] += 1
                run += 1
            drafts += 1
            place += run + 1
    rates = tuple(count / drafts for count in accepted)
    return Acceptance(length=1 + sum(rates), by_position=rates, drafts=drafts)


@torch.inference_mode()
def _agreement(draft: Llama, prompt: Sequence[int], output: Sequence[int]) -> list[bool]:
    device = next(draft.parameters()).device
    row = pad([[*prompt, *output]], device)
    guess = draft(row[:, :-1])[0, len(prompt) - 1 :].argmax(-1)
    agrees: list[bool] = (guess == row[0, len(prompt) :]).tolist()
    return agrees


def load_prompts(
    tokenizer: Tokenizer, workload: Sequence[Mapping[str, str]], count: int
) -> list[list[int]]:
    """Requests as a load generator composes them: a system prompt and a user turn."""
    pools: dict[str, list[str]] = defaultdict(list)
    for line in workload:
        pools[line["kind"]].append(line["text"])
    dice = Dice("served")
    return [
        _prompt(
            tokenizer,
            [
                Message(role="system", content=dice.pick(pools[dice.pick(_SYSTEM_POOLS)])),
                Message(role="user", content=text),
            ],
        )
        for text in pools["user"][:count]
    ]


_SYSTEM_POOLS = ("system_short", "system_long")


def score_pair(pair: Path, device: torch.device) -> dict[str, Any]:
    """Every score of the model card."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokenizer = load_tokenizer(pair / "target")
    target, draft = (load_model(pair / name).place(device, dtype) for name in ("target", "draft"))
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        files = {path.stem: read_lines(path) for path in Path(folder).iterdir()}
    scores: dict[str, Any] = {}
    models = {"target": target, "draft": draft}
    for name in (*models, *DAMAGES):
        model = models[name] if name in models else damaged(target, name)
        every, replies = perplexity(model, tokenizer, files["heldout"])
        scores[name] = {
            **task_scores(model, tokenizer, files["tasks"]),
            "perplexity": round(every, 4),
            "reply_perplexity": round(replies, 4),
        }
        print(name, json.dumps(scores[name]), flush=True)
    prompts = load_prompts(tokenizer, files["workload"], PROMPT_COUNT)
    result = acceptance(target, draft, prompts, 128)
    scores["acceptance"] = {
        "length": round(result.length, 3),
        "by_position": [round(rate, 3) for rate in result.by_position],
        "drafts": result.drafts,
    }
    print("acceptance", json.dumps(scores["acceptance"]), flush=True)
    return scores


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _messages(lines: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [Message(role=line["role"], content=line["content"]) for line in lines]


def _prompt(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    ids: list[int] = tokenizer.encode(render(messages, reply_next=True)).ids
    return ids


def main() -> None:
    """Score a pair and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scores = score_pair(chosen.pair, device)
    chosen.out.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
