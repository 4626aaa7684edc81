"""A random-weight model of a named shape is a checkpoint like any other."""

from pathlib import Path

import pytest
import torch
from lab.shapes import SHAPES, main, shard_shapes, write_calibration, write_model

from whet.checkpoint import read_facts
from whet.quant import load_calibration


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Llama 3's published 8,030,261,248 and 70,553,706,496 at a vocabulary of 128,256 tokens.
        ("7b", 8_030_261_248 - 2 * (128_256 - 4096) * 4096),
        ("70b", 70_553_706_496 - 2 * (128_256 - 4096) * 8192),
    ],
)
def test_the_named_shapes_have_the_published_number_of_parameters(
    name: str, parameters: int
) -> None:
    sizes = [size for shard in shard_shapes(SHAPES[name]) for size in shard.values()]
    assert sum(torch.Size(size).numel() for size in sizes) == parameters


def test_a_written_shape_reads_back_with_outlier_channels(tmp_path: Path) -> None:
    total = write_model(SHAPES["tiny"], tmp_path / "model", torch.device("cpu"))
    facts = read_facts(tmp_path / "model")
    assert (facts.layers, facts.hidden_size, facts.weight_bytes) == (2, 256, total)
    assert facts.stored.scheme == "16bit"
    from safetensors.torch import load_file

    layer = load_file(tmp_path / "model" / "model-00001-of-00003.safetensors")
    gains = layer["model.layers.0.input_layernorm.weight"].float()
    assert int((gains > 2).sum()) == 8
    assert layer["model.layers.0.mlp.up_proj.weight"].float().std() == pytest.approx(0.02, rel=0.02)


def test_every_calibration_sample_is_cut_to_the_wanted_length(tmp_path: Path) -> None:
    write_model(SHAPES["tiny"], tmp_path / "model", torch.device("cpu"))
    file = tmp_path / "calibration.jsonl"
    write_calibration(file, samples=5, max_tokens=300)
    drawn = load_calibration(file, tmp_path / "model", samples=5, max_tokens=300, seed=0)
    assert [len(ids) for ids in drawn.ids] == [300] * 5


def test_a_folder_that_is_taken_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(SystemExit):
        main(["tiny", str(tmp_path)])
    assert "name a new folder" in capsys.readouterr().err
