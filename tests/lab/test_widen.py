"""A widened model computes what the small one computes: transformers in float64 is the judge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.sizes import SHAPES, Sizes, find_sizes, require_groups

from tests.lab.small_llama import norms_in_own_precision, write_small
from whet.core.errors import UsageError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = Sizes(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=96, head_dim=16)
IDS = torch.tensor([[7, 90, 3, 201, 44, 45, 46, 8, 150, 3], [5, 5, 61, 2, 9, 230, 17, 7, 1, 0]])


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    norms_in_own_precision(monkeypatch)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("small") / "model", SMALL)


def widened(small: Path, out: Path, sizes: Sizes) -> Path:
    from lab.testbed import read_source, write_model

    write_model(read_source(small, sizes, role="target"), out, torch.device("cpu"))
    return out


def seen(folder: Path) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Logits, and the stream after the embedding and after each layer (the last one normed)."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        out = model(IDS, output_hidden_states=True)
    return out.logits, out.hidden_states


def vocabulary(small: Path) -> int:
    return int(transformers.AutoConfig.from_pretrained(small).vocab_size)


CASES = {
    "nothing changes": {},
    "hidden": {"hidden": 200},
    "mlp": {"intermediate": 256},
    "kv 2 to 8, heads 4 to 32": {"heads": 32, "kv_heads": 8},
    "more query heads a KV head": {"heads": 16, "kv_heads": 2},
    "fewer query heads a KV head": {"heads": 8, "kv_heads": 8},
    "3 layers more": {"layers": 5},
    "all": {"hidden": 192, "layers": 5, "heads": 32, "kv_heads": 8, "intermediate": 320},
    "all, larger vocabulary": {"hidden": 192, "layers": 3, "heads": 8, "kv_heads": 8},
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_every_layer_are_the_small_models(
    small: Path, tmp_path: Path, name: str
) -> None:
    own = vocabulary(small)
    padded = 512 if "vocabulary" in name else own
    sizes = replace(SMALL, vocabulary=padded, **CASES[name])
    logits, states = seen(small)
    wide_logits, wide_states = seen(widened(small, tmp_path / "wide", sizes))

    assert (wide_logits[..., :own] - logits).abs().max() < 1e-9
    # Added layers change nothing, so the stream behind the last real layer stands still.
    real = [*states[:-1], *[None] * (sizes.layers - SMALL.layers), states[-1]]
    for expected, result in zip(real, wide_states, strict=True):
        if expected is not None:
            assert (result[..., : SMALL.hidden] - expected).abs().max() < 1e-9
        spare = result[..., SMALL.hidden + (padded > own) :]
        assert not spare.any()
    for later in wide_states[SMALL.layers + 1 : -1]:
        assert torch.equal(later, wide_states[SMALL.layers])


def test_added_vocabulary_never_wins_and_takes_no_probability(small: Path, tmp_path: Path) -> None:
    own = vocabulary(small)
    sizes = replace(SMALL, hidden=128, vocabulary=4 * own)
    logits, _ = seen(widened(small, tmp_path / "wide", sizes))
    assert logits[..., own:].max() < logits[..., :own].min() - 100
    # -64·2048/rms of the last layer's stream, from the small model's own states.
    stream: list[torch.Tensor] = []
    model = transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float64)
    model.model.norm.register_forward_hook(lambda _m, args, _o: stream.append(args[0]))
    with torch.no_grad():
        model(IDS)
    rms = (stream[0].pow(2).mean(-1) + 1e-4).sqrt()
    assert torch.allclose(logits[..., -1], -131072 / rms, rtol=1e-9)


@pytest.fixture(scope="module")
def tensors(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    sizes = Sizes(
        hidden=256, layers=4, heads=16, kv_heads=4, intermediate=512, head_dim=16,
        vocabulary=vocabulary(small),
    )  # fmt: skip
    folder = widened(small, tmp_path_factory.mktemp("wide") / "model", sizes)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("part", ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"])
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_projections_that_only_read_hold_no_zeros(
    tensors: dict[str, torch.Tensor], part: str, layer: int
) -> None:
    weight = tensors[f"model.layers.{layer}.{part}.weight"]
    assert weight.count_nonzero() == weight.numel()
    assert weight.std().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("part", ["self_attn.o_proj", "mlp.down_proj"])
def test_projections_that_write_are_the_small_models_and_zeros(
    tensors: dict[str, torch.Tensor], part: str
) -> None:
    inner = SMALL.heads * SMALL.head_dim if part.endswith("o_proj") else SMALL.intermediate
    counts = [tensors[f"model.layers.{layer}.{part}.weight"].count_nonzero() for layer in range(4)]
    assert counts == [SMALL.hidden * inner] * 2 + [0, 0]


def test_random_weights_differ_from_layer_to_layer(tensors: dict[str, torch.Tensor]) -> None:
    rows = {
        tensors[f"model.layers.{layer}.mlp.gate_proj.weight"][-1, -1].item() for layer in range(4)
    }
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("name", "vocabulary", "tied", "published"),
    [
        ("8b", 128256, False, 8_030_261_248),  # Llama 3 8B
        ("13b", 32000, False, 13_015_864_320),  # Llama 2 13B
        ("3b", 128256, True, 3_212_749_824),  # Llama 3.2 3B
        ("1b", 128256, True, 1_235_814_400),  # Llama 3.2 1B
    ],
)
def test_named_shapes_have_the_parameters_of_their_models(
    name: str, vocabulary: int, tied: bool, published: int
) -> None:
    sizes = replace(SHAPES[name], vocabulary=vocabulary, tied=tied)
    assert sizes.parameters() == published


def test_a_shape_by_name_and_by_numbers() -> None:
    assert find_sizes("7B") == find_sizes("4096,32,32,8,14336")
    with pytest.raises(UsageError, match="did you mean '13b'"):
        find_sizes("13bb")
    with pytest.raises(UsageError, match="five numbers"):
        find_sizes("4096,32")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden": 32}, "hidden 32 is below the demo model's own 64"),
        ({"kv_heads": 1}, "kv heads 1 is below"),
        ({"heads": 9}, "9 heads cannot share 2 KV heads"),
        ({"head_dim": 32}, "keep the head dimension"),
        ({"layers": 1}, "layers 1 is below"),
        ({"heads": 6}, "hidden size must be a multiple of the number of heads"),
        ({"vocabulary": 9000}, "a larger vocabulary needs a spare channel"),
    ],
)
def test_sizes_that_cannot_hold_the_small_model(change: dict[str, int], told: str) -> None:
    from lab.widen import Widening

    widening = Widening(narrow=SMALL, wide=replace(SMALL, **change), epsilon=1e-5)
    with pytest.raises(UsageError, match=told):
        widening.require_possible()


def test_kv_heads_that_would_have_to_be_stored_more_often_than_there_is_room() -> None:
    from lab.widen import Widening

    narrow = replace(SMALL, heads=6, kv_heads=2)
    wide = replace(SMALL, heads=8, kv_heads=4)  # two copies of each fit
    assert Widening(narrow=narrow, wide=wide, epsilon=1e-5).kv_copies == 2
    wide = replace(SMALL, hidden=66, heads=6, kv_heads=3)
    with pytest.raises(UsageError, match="needs 4 KV heads of 2 query heads each"):
        Widening(narrow=narrow, wide=wide, epsilon=1e-5).require_possible()


def test_sizes_that_do_not_fall_into_groups() -> None:
    with pytest.raises(UsageError, match=r"multiple of 128.*use 512"):
        require_groups(replace(SMALL, hidden=400), "target")
