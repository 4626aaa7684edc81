"""The levers that a variant pulls, in words, against lists made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.records import variant
from whet.core.flags import drop_kv_sizing, format_value, plain_args
from whet.core.records.engine import Speculation, Variant
from whet.engines.compatibility import lever_words
from whet.levers import labels, lever_diff
from whet.levers.speculation import speculation_label

ADAPTERS = (("support", "/a/support"), ("sales", "/a/sales"))


def speculating(method: str = "draft_model", draft: str | None = None, **options: Any) -> Variant:
    found = Speculation(
        method=method, num_tokens=4, draft_path=draft, options=tuple(options.items())
    )
    return variant(speculation=found)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (("max_num_seqs", 8), {"max_num_seqs": 8}),
        (("--max-num-seqs", 8), {"max_num_seqs": 8}),
        (("tp", 2), {"tensor_parallel_size": 2}),
        (("-O", 3), {"optimization_level": 3}),
        (("no_enable_chunked_prefill", True), {"enable_chunked_prefill": False}),
        (("--no-enable-chunked-prefill", False), {"enable_chunked_prefill": True}),
        (("no_proxy_hosts", "x"), {"no_proxy_hosts": "x"}),
    ],
)
def test_a_flag_has_one_name_however_it_is_written(
    written: tuple[str, Any], plain: dict[str, Any]
) -> None:
    assert plain_args(variant(engine_args=(written,))) == plain


def test_the_last_of_two_spellings_holds() -> None:
    args = (("max_num_seqs", 8), ("--max-num-seqs", 32))
    assert plain_args(variant(engine_args=args)) == {"max_num_seqs": 32}


def test_a_plain_variant_has_its_weights_alone() -> None:
    assert labels(variant()) == {"weights=16bit"}


def test_every_lever_is_a_word() -> None:
    found = labels(
        variant(
            weights="awq",
            speculation=Speculation(
                method="draft_model", num_tokens=4, draft_path="/run/checkpoints/small"
            ),
            prefix_cache=True,
            batching="static",
            loras=ADAPTERS,
            max_loras=2,
            engine_args=(("kv_cache_dtype", "fp8"), ("enforce-eager", True)),
            env=(("VLLM_ATTENTION_BACKEND", "FLASH_ATTN"),),
        )
    )
    assert found == {
        "weights=awq",
        "speculation=draft_model K=4 by small",
        "prefix_cache",
        "batching=static",
        "lora=support+sales",
        "kv_cache_dtype=fp8",
        "enforce_eager=on",
        "VLLM_ATTENTION_BACKEND=FLASH_ATTN",
    }


def test_flags_that_change_only_what_is_told_are_no_levers() -> None:
    args = (("disable_uvicorn_access_log", True), ("--enable-prompt-tokens-details", True))
    assert labels(variant(engine_args=args)) == {"weights=16bit"}


@pytest.mark.parametrize(
    ("fit", "said"), [(None, "lora=support+sales"), (1, "lora=support+sales cold")]
)
def test_adapters_that_do_not_all_fit_are_cold(fit: int | None, said: str) -> None:
    assert said in labels(variant(loras=ADAPTERS, max_loras=fit))


def test_a_draft_from_the_hub_is_called_by_its_id_and_not_by_its_revision() -> None:
    path = "/cache/hub/models--org--draft/snapshots/0123abc"
    assert "speculation=eagle K=4 by org/draft" in labels(speculating("eagle", path))


def test_speculation_in_words_with_its_options_in_order() -> None:
    assert speculation_label(variant()) == ""
    assert speculation_label(speculating("ngram")) == "ngram K=4"
    both = speculating("ngram", prompt_lookup_min=2, disable_padded_drafter_batch=True)
    assert speculation_label(both) == (
        "ngram K=4 disable_padded_drafter_batch=on prompt_lookup_min=2"
    )


@pytest.mark.parametrize(
    ("value", "said"), [(True, "on"), (False, "off"), (1, "1"), (0.5, "0.5"), ("fp8", "fp8")]
)
def test_a_value_as_it_is_written(value: Any, said: str) -> None:
    assert format_value(value) == said


def test_what_is_pulled_is_the_difference() -> None:
    baseline = variant(engine_args=(("max_model_len", 512),))
    other = variant(weights="awq", prefix_cache=True, engine_args=(("max_model_len", 512),))
    assert lever_diff(other, baseline) == {"weights=awq", "prefix_cache"}
    assert lever_diff(baseline, baseline) == frozenset()


def test_what_only_the_baseline_sets_counts_as_unset() -> None:
    baseline = variant(prefix_cache=True, engine_args=(("seed", 1), ("dtype", "float32")))
    other = variant(engine_args=(("dtype", "bfloat16"),))
    assert lever_diff(other, baseline) == {"prefix_cache=unset", "seed=unset", "dtype=bfloat16"}


def test_an_object_is_a_lever_for_each_of_its_keys_and_a_long_list_is_cut() -> None:
    whole = '{"cudagraph_mode":"FULL","cudagraph_capture_sizes":[1,2,4,8,16,32,64]}'
    found = labels(variant(engine_args=(("compilation_config", whole),)))
    assert found == {
        "weights=16bit",
        "compilation_config.cudagraph_mode=FULL",
        "compilation_config.cudagraph_capture_sizes=[1, 2, … 64; 7]",
    }


def test_what_sizes_the_kv_pool_can_be_left_out() -> None:
    args = (("kv_cache_memory_bytes", 9), ("max_num_seqs", 8))
    found = labels(variant(engine_args=args, env=(("VLLM_CPU_KVCACHE_SPACE", "4"),)))
    assert drop_kv_sizing(found) == {"weights=16bit", "max_num_seqs=8"}


def test_labels_and_the_compatibility_table_name_a_lever_alike() -> None:
    everything = variant(
        speculation=Speculation(method="ngram", num_tokens=4, draft_path=None),
        prefix_cache=True,
        loras=ADAPTERS,
        engine_args=(
            ("kv-cache-dtype", "fp8"),
            ("compilation_config", '{"cudagraph_mode": "FULL"}'),
        ),
        env=(("VLLM_TEST_FORCE_FP8_MARLIN", "1"),),
    )
    names = {label.split("=")[0] for label in labels(everything)}
    assert {word.split("=")[0] for word in lever_words(everything)} == names
