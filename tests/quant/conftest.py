"""A tiny Llama with planted outlier channels, and text to calibrate it on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama
from whet.core.spec import CalibrationSpec, RecipeSpec

TEXT = "the order was shipped on monday and a customer asks for refund of broken lamp"


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recipe() -> RecipeSpec:
    text = CalibrationSpec(samples=24, max_tokens=48)
    return RecipeSpec(method="awq", group_size=64, calibration=text)


@pytest.fixture(scope="session")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "text.jsonl"
    words = TEXT.split()
    texts = [" ".join(words[i % 7 :: 1 + i % 3] * 3) for i in range(40)]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Norm gains of 30 in a few channels, as trained models have them, make outlier inputs."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("models") / "outliers")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("layernorm.weight"):
            tensor[[3, 40, 77]] = 30.0
    save_file(tensors, file, metadata={"format": "pt"})
    return folder
