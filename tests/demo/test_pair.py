"""The committed pair: files that transformers reads, shapes that quantize, right answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.demo import pair_paths

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TARGET, DRAFT = pair_paths()
CHAT = [
    {"role": "system", "content": "You are Mara."},
    {"role": "user", "content": "What is 4817 + 3965?"},
]


def test_both_models_have_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (TARGET / name).read_bytes() == (DRAFT / name).read_bytes()


def test_weights_stay_small() -> None:
    total = sum((folder / "model.safetensors").stat().st_size for folder in (TARGET, DRAFT))
    assert total <= 28_000_000


def test_special_tokens_and_digits_are_single_pieces() -> None:
    reader = transformers.AutoTokenizer.from_pretrained(TARGET)
    assert len(reader) == 4096
    assert (reader.pad_token_id, reader.bos_token_id, reader.eos_token_id) == (0, 1, 2)
    assert reader.tokenize("<|user|>907") == ["<|user|>", "9", "0", "7"]
    text = "Zürich – 3 × 14.95 EUR\n\tok?"
    assert reader.decode(reader(text).input_ids) == text


@pytest.mark.parametrize("folder", [TARGET, DRAFT], ids=["target", "draft"])
def test_shapes_quantize_at_group_128(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["head_dim"] == 128
    sizes = (config["hidden_size"], config["intermediate_size"])
    assert [size % 128 for size in sizes] == [0, 0]


def test_target_answers() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    reader = transformers.AutoTokenizer.from_pretrained(TARGET)
    text = reader.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    ids = reader(text, return_tensors="pt").input_ids
    answer = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert reader.decode(answer, skip_special_tokens=True) == "8782"
