"""``whet check`` accepts a recipe if and only if ``whet quantize`` then writes it.

Tiny random models of each family go through both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama, write_tokenizer
from whet.core.errors import WhetError
from whet.core.spec import RecipeSpec
from whet.quant import quantize
from whet.quant.suitability import recipe_problem, working_recipes

_SHAPE: Final[Mapping[str, Any]] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "sliding_window": 16,
}
_EXPERTS: Final[Mapping[str, Any]] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT: Final[Mapping[str, Any]] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "head_dim": 32,
}
_DELTA: Final[Mapping[str, Any]] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_MAMBA: Final[Mapping[str, Any]] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_d_ssm": 256,
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 1,
    "mamba_n_groups": 1,
    "chunk_size": 16,
    "mamba_chunk_size": 16,
}
DENSE: Final = (
    *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "granite", "granite_swa"),
    *("olmo2", "olmo3", "smollm3", "seed_oss", "apertus", "arcee", "helium", "starcoder2"),
    *("glm", "glm4", "cohere2", "exaone4", "ernie4_5", "hunyuan_v1_dense", "nemotron"),
    *("gemma", "gemma2", "gemma3_text"),
)
LIKE_MIXTRAL: Final = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "dots1", "minimax_m2", "laguna"),
    *("hy_v3", "exaone_moe", "flex_olmo", "solar_open", "afmoe"),
)
MIXTURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "num_experts": None},
    "mimo_v2_flash": {"v_head_dim": 32},
    "lfm2_moe": {"num_dense_layers": 1, "layer_types": ["conv", "full_attention"] * 2},
    "deepseek_v2": {**_LATENT, "q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": _LATENT,
    "glm4_moe_lite": _LATENT,
    "kimi_linear": {**_LATENT, "linear_num_heads": 4, "linear_head_dim": 32},
    "glm_moe_dsa": {**_LATENT, "index_head_dim": 32, "index_n_heads": 4, "index_topk": 8},
    "longcat_flash": {
        **_LATENT,
        "num_layers": 2,
        "num_hidden_layers": None,
        "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 64,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "qwen3_next": _DELTA,
}
HYBRIDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3_5_text": _DELTA,
    "olmo_hybrid": {**_DELTA, "layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "falcon_h1": _MAMBA,
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "nemotron_h": {**_MAMBA, "layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{kind: {} for kind in DENSE},
    "phi3": {"head_dim": None},
    **dict.fromkeys(LIKE_MIXTRAL, _EXPERTS),
    **{kind: {**_EXPERTS, **own} for kind, own in MIXTURES.items()},
    **HYBRIDS,
}
"""By kind, the keys that differ from the shape."""
SAMPLE: Final = ("laguna", "lfm2", "falcon_h1", "glm_moe_dsa")
"""One with other names, a convolution, a state in each layer, and a layer that needs another's."""
LITTLE: Final = {"samples": 8, "max_tokens": 32}
GPTQ: Final = RecipeSpec.model_validate({"method": "gptq", "group_size": 32, "calibration": LITTLE})
REFUSED: Final[Mapping[str, str]] = {
    "glm_moe_dsa": "ValueError",  # its layers hand on the tokens that the indexer chose
    "nemotron_h": "AttributeError",
    "bamba": "ValueError",
    "falcon_h1": "mup_vector is not stored",
    "longcat_flash": "nonzero",  # experts that compute nothing are told by values
}
"""By kind, words of the reason why no inputs can be measured."""


def write_kind(kind: str, folder: Path) -> Path:
    """A tiny random checkpoint of ``kind``, as ``save_pretrained`` of transformers writes it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    vocab = write_tokenizer(folder)
    values = {**_SHAPE, **KINDS[kind], "vocab_size": vocab}
    config = AutoConfig.for_model(kind, **{k: v for k, v in values.items() if v is not None})
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.isnan().any() or parameter.abs().max() > 1e3:
                parameter.fill_(0.5)  # left empty by the class
            if name.endswith("weight") and parameter.dim() > 1:
                parameter.normal_(std=0.05)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in SAMPLE else pytest.mark.full) for k in KINDS]
)
def test_check_and_quantize_agree(kind: str, calibration: Path, tmp_path: Path) -> None:
    folder = write_kind(kind, tmp_path / "model")
    for recipe in {GPTQ, *working_recipes(folder, GPTQ)}:
        out = tmp_path / f"{recipe.method}-{recipe.scheme}"
        assert (recipe_problem(folder, recipe) is None) == written(folder, out, recipe, calibration)
    problem = recipe_problem(folder, GPTQ)
    assert (problem is None) == (kind not in REFUSED), problem
    assert REFUSED.get(kind, "") in (problem or "")


def written(folder: Path, out: Path, recipe: RecipeSpec, calibration: Path) -> bool:
    """Whether the quantizer makes the recipe, past what it refuses at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.quant.suitability.Source.require_suitable", lambda *_: None)
        try:
            quantize(folder, out, recipe, calibration=calibration)
        except WhetError:
            return False
    return True


def test_only_layers_with_a_cache_get_its_scales(calibration: Path, tmp_path: Path) -> None:
    """The convolutions of LFM2 keep a state and no keys."""
    folder = write_kind("lfm2", tmp_path / "model")
    words = {"scheme": "FP8_DYNAMIC", "kv_cache": "fp8", "calibration": LITTLE}
    recipe = RecipeSpec.model_validate(words)
    made = quantize(folder, tmp_path / "out", recipe, calibration=calibration)
    names = load_file(Path(made.path) / "model.safetensors")
    stored = {name.split(".")[2] for name in names if name.endswith((".k_scale", ".v_scale"))}
    assert stored == {"1", "3"}


def test_a_tied_head_that_is_stored_too_is_not_written(calibration: Path, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", tie_word_embeddings=True)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = 1.1 * tensors["model.embed_tokens.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    recipe = RecipeSpec.model_validate({"method": "rtn", "group_size": 64})
    made = quantize(folder, tmp_path / "out", recipe, calibration=calibration)
    assert "lm_head.weight" not in load_file(Path(made.path) / "model.safetensors")
    assert "the stored lm_head differs" in made.warnings[0]


def test_token_ids_beyond_the_embedding_are_named(calibration: Path, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    token = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary[token] = 4096
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(calibration, tmp_path / "text.jsonl")
    with (tmp_path / "text.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"text": token.replace("\u0120", " ") * 4}) + "\n")
    recipe = GPTQ.model_copy(update={"group_size": 64})
    with pytest.raises(WhetError, match="has the token id 4,096, and the embedding has"):
        quantize(
            folder,
            tmp_path / "out",
            recipe.model_copy(
                update={"calibration": recipe.calibration.model_copy(update={"samples": 64})}
            ),
            calibration=tmp_path / "text.jsonl",
        )


@pytest.mark.parametrize("kind", ["gemma2", "phi3", "falcon_h1"])
def test_a_shape_that_contradicts_the_config_takes_no_recipe(kind: str, tmp_path: Path) -> None:
    """Whether or not its layers can be run, and in whichever layer."""
    folder = write_kind(kind, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if ".3." in name and "attn.o_proj" in name)
    tensors[name] = torch.zeros(128, 64, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for recipe in (GPTQ, GPTQ.model_copy(update={"method": "rtn"})):
        with pytest.raises(
            WhetError, match=r"o_proj.*\[128, 64\] and config\.json says \[128, 128\]"
        ):
            recipe_problem(folder, recipe)
