"""The training code agrees with transformers, and scores answers as stated."""

from __future__ import annotations

import pytest
from lab.model import load_model
from lab.text import Message
from lab.tokenizer import render

from whet.demo import pair_paths

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TARGET, DRAFT = pair_paths()
CHAT = [
    {"role": "system", "content": "You are Mara."},
    {"role": "user", "content": "What is 4817 + 3965?"},
]


def test_transformers_chat_template_agrees_with_the_training_form() -> None:
    reader = transformers.AutoTokenizer.from_pretrained(TARGET)
    text = reader.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    messages = [
        Message(role="system", content="You are Mara."),
        Message(role="user", content="What is 4817 + 3965?"),
    ]
    assert text == render(messages, reply_next=True)
    assert text.startswith("<|bos|><|system|>You are Mara.<|end|><|user|>")


def test_own_forward_agrees_with_transformers() -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32)
    ids = torch.arange(6, 126)[None]
    with torch.no_grad():
        assert torch.allclose(load_model(DRAFT)(ids), reference(ids).logits, atol=2e-3)
