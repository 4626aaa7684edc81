"""Graded drafts: the same shapes, the same files, as much of the draft as was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import read_facts
from whet.core.errors import UsageError
from whet.flow.break_even.noisy_draft import write_noisy_draft


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("graded") / "draft", seed=1)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def test_no_noise_is_the_draft_bit_by_bit(draft: Path, tmp_path: Path) -> None:
    before, after = weights(draft), weights(write_noisy_draft(draft, tmp_path / "same", noise=0))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_shapes_types_and_files_stay_and_only_linear_layers_change(
    draft: Path, tmp_path: Path
) -> None:
    out = write_noisy_draft(draft, tmp_path / "worse", noise=0.5)
    before, after = weights(draft), weights(out)
    assert {n: (w.shape, w.dtype) for n, w in before.items()} == {
        n: (w.shape, w.dtype) for n, w in after.items()
    }
    assert {file.name for file in draft.iterdir()} == {file.name for file in out.iterdir()}
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {n for n, w in before.items() if w.ndim == 2 and "embed" not in n}
    assert read_facts(out).tokenizer.sha256 == read_facts(draft).tokenizer.sha256


@pytest.mark.parametrize("noise", [0.3, 0.8, 1.0])
def test_the_draft_is_left_in_the_share_that_remains(
    draft: Path, tmp_path: Path, noise: float
) -> None:
    """The correlation with the draft is √(1 − s²), and the root mean square is the draft's."""
    after = weights(write_noisy_draft(draft, tmp_path / "worse", noise=noise))
    name = "model.layers.0.mlp.up_proj.weight"
    old, new = (each[name].astype(float).ravel() for each in (weights(draft), after))
    assert np.corrcoef(old, new)[0, 1] == pytest.approx((1 - noise**2) ** 0.5, abs=0.02)
    assert np.sqrt((new**2).mean() / (old**2).mean()) == pytest.approx(1, abs=0.02)


def test_it_can_be_made_again_and_a_seed_gives_another(draft: Path, tmp_path: Path) -> None:
    one, two, other = (
        write_noisy_draft(draft, tmp_path / name, noise=0.5, seed=seed)
        for name, seed in (("one", 0), ("two", 0), ("other", 1))
    )
    file = "model.safetensors"
    assert (one / file).read_bytes() == (two / file).read_bytes()
    assert (one / file).read_bytes() != (other / file).read_bytes()


def test_a_share_beyond_1_is_refused_and_leaves_nothing(draft: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        write_noisy_draft(draft, tmp_path / "never", noise=1.2)
    assert list(tmp_path.iterdir()) == []
