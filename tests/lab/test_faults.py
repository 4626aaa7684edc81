"""Each fault changes what it says and nothing else, and what it makes still loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lab import faults  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.checkpoint_factory import write_json, write_tiny_llama  # noqa: E402
from whet.core.errors import UsageError  # noqa: E402
from whet.core.spec import RecipeSpec  # noqa: E402
from whet.demo import pair_paths  # noqa: E402
from whet.quant.run import quantize_many  # noqa: E402

TARGET, _ = pair_paths()
LINEARS = {
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("good") / "tiny")


@pytest.fixture(scope="module")
def quantized(good: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("quantized")
    lines = root / "text.jsonl"
    lines.write_text("".join(json.dumps({"text": f"order {i} was late"}) + "\n" for i in range(4)))
    recipes = {"w4": {"method": "rtn"}, "fp8": {"scheme": "FP8", "kv_cache": "fp8"}}
    base = {"group_size": 64, "calibration": {"samples": 4, "max_tokens": 16}}
    wanted = {
        name: (root / name, RecipeSpec.model_validate(base | recipe))
        for name, recipe in recipes.items()
    }
    quantize_many(good, wanted, calibration=lines)
    return {name: folder for name, (folder, _) in wanted.items()}


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def changed_tensors(one: Path, two: Path) -> set[str]:
    """Names whose bytes differ; both folders must hold the same names, dtypes and shapes."""
    before, after = tensors(one), tensors(two)
    kinds = [{k: (v.dtype, v.shape) for k, v in side.items()} for side in (before, after)]
    assert kinds[0] == kinds[1]
    return {k for k, v in before.items() if not torch.equal(v, after[k])}


def changed_files(one: Path, two: Path) -> set[str]:
    names = {path.name for path in one.iterdir()}
    assert names == {path.name for path in two.iterdir()}
    return {name for name in names if (one / name).read_bytes() != (two / name).read_bytes()}


def loaded(folder: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_a_layer_of_a_16_bit_folder_is_scaled_and_no_other(good: Path, tmp_path: Path) -> None:
    bad = faults.scale_layer(good, tmp_path / "bad", 1, 1.05)
    assert changed_files(good, bad) == {"model.safetensors"}
    assert changed_tensors(good, bad) == {f"model.layers.1.{name}.weight" for name in LINEARS}
    before, after = tensors(good), tensors(bad)
    for name in changed_tensors(good, bad):
        wanted = before[name].double() * 1.05
        # Half a unit in the last place of float16, subnormals included.
        assert ((after[name].double() - wanted).abs() <= wanted.abs() * 2**-11 + 2**-25).all()
    loaded(bad)


@pytest.mark.parametrize("scheme", ["w4", "fp8"])
@torch.no_grad()
def test_a_layer_of_a_compressed_folder_is_scaled_by_its_scales(
    scheme: str, quantized: dict[str, Path], tmp_path: Path
) -> None:
    source = quantized[scheme]
    bad = faults.scale_layer(source, tmp_path / "bad", 0, 1.05)
    assert changed_files(source, bad) == {"model.safetensors"}
    assert changed_tensors(source, bad) == {f"model.layers.0.{n}.weight_scale" for n in LINEARS}
    before, after = tensors(source), tensors(bad)
    for name in changed_tensors(source, bad):
        assert torch.allclose(after[name].float() / before[name].float(), torch.tensor(1.05), 4e-3)
    ids = torch.tensor([[5, 9, 40, 41]])
    assert not torch.allclose(loaded(source)(ids).logits, loaded(bad)(ids).logits)


def test_a_scale_of_one_file_of_several_leaves_the_others(good: Path, tmp_path: Path) -> None:
    whole, split = tensors(good), tmp_path / "split"
    parts = {f"model-0000{i}-of-00002.safetensors": {} for i in (1, 2)}
    for name, tensor in whole.items():
        parts[f"model-0000{2 if '.layers.1.' in name else 1}-of-00002.safetensors"][name] = tensor
    write_tiny_llama(split)
    (split / "model.safetensors").unlink()
    for file, part in parts.items():
        save_file(part, split / file, metadata={"format": "pt"})
    index = {name: file for file, part in parts.items() for name in part}
    write_json(split / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    bad = faults.scale_layer(split, tmp_path / "bad", 1)
    assert changed_files(split, bad) == {"model-00002-of-00002.safetensors"}
    assert changed_tensors(split, bad) == {f"model.layers.1.{name}.weight" for name in LINEARS}
    loaded(bad)


def test_linear_weights_are_rounded_to_few_levels_a_group_and_no_other(tmp_path: Path) -> None:
    bad = faults.round_weights(TARGET, tmp_path / "bad", 2)
    names = changed_tensors(TARGET, bad)
    assert {name.split(".", 3)[-1].removesuffix(".weight") for name in names} == LINEARS
    for name in names:
        for group in tensors(bad)[name].view(-1, 128)[:4]:
            assert len(group.unique()) <= 4


def test_a_layer_that_is_not_there_is_refused(good: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no linear weights in layer 2"):
        faults.scale_layer(good, tmp_path / "bad", 2)


def test_a_folder_that_is_there_is_not_written_into(good: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        faults.swap_tokens(good, tmp_path)


def test_two_digits_swap_ids_and_nothing_else_does(tmp_path: Path) -> None:
    bad = faults.swap_tokens(TARGET, tmp_path / "bad")
    assert changed_files(TARGET, bad) == {"tokenizer.json"}
    before, after = (json.loads((f / "tokenizer.json").read_text()) for f in (TARGET, bad))
    one, two = before["model"].pop("vocab"), after["model"].pop("vocab")
    assert before == after
    assert {token for token in one if one[token] != two[token]} == {"1", "2"}
    assert (two["1"], two["2"]) == (one["2"], one["1"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(bad)
    good = transformers.AutoTokenizer.from_pretrained(TARGET)
    assert tokenizer.decode(good("Order 1203.")["input_ids"]) == "Order 2103."


def test_a_unigram_vocabulary_swaps_places_and_keeps_scores(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    vocab = [["<unk>", 0.0], ["e", -1.0], ["t", -2.0], ["x", -3.0]]
    write_json(source / "tokenizer.json", {"added_tokens": [], "model": {"vocab": vocab}})
    bad = faults.swap_tokens(source, tmp_path / "bad", "x", "e")
    found = json.loads((bad / "tokenizer.json").read_text())["model"]["vocab"]
    assert found == [["<unk>", 0.0], ["x", -3.0], ["t", -2.0], ["e", -1.0]]


@pytest.mark.parametrize("token", ["no such token", "<|start|>"])
def test_only_ordinary_tokens_are_swapped(token: str, good: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ordinary token"):
        faults.swap_tokens(good, tmp_path / "bad", token)


def test_a_wrong_end_is_written_wherever_an_engine_reads_it(tmp_path: Path) -> None:
    bad = faults.wrong_eos(TARGET, tmp_path / "bad")
    files = {"config.json", "generation_config.json"}
    names = {"tokenizer_config.json", "special_tokens_map.json"}
    assert changed_files(TARGET, bad) == files | names
    for name, value in (
        *((f, ("eos_token_id", 5)) for f in files),
        *((f, ("eos_token", "<|assistant|>")) for f in names),
    ):
        before, after = (json.loads((folder / name).read_text()) for folder in (TARGET, bad))
        assert after == before | dict([value])
    assert transformers.AutoTokenizer.from_pretrained(bad).eos_token_id == 5
    assert transformers.GenerationConfig.from_pretrained(bad).eos_token_id == 5
    lesser = faults.wrong_eos(TARGET, tmp_path / "lesser", 4, tokenizer=False)
    assert changed_files(TARGET, lesser) == files
    assert json.loads((lesser / "config.json").read_text())["eos_token_id"] == 4


def test_an_end_that_is_the_true_one_is_no_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not its end"):
        faults.wrong_eos(TARGET, tmp_path / "bad", 2)
