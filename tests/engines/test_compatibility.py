"""The compatibility table: every row can be read, and the right one counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import records
from tests.engines.conftest import make_variant
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.engines import compatibility
from whet.engines.compatibility import (
    Row,
    compatibility_rows,
    lever_words,
    lookup,
    most_specific,
    version_of,
)
from whet.engines.machine import Machine, machine_applies, machine_rank

AVX2 = Machine(kind="cpu", vectors="avx2")
AVX512 = Machine(kind="cpu", vectors="avx512")
HOPPER = Machine(kind="cuda", capability=(9, 0))
BLACKWELL = Machine(kind="cuda", capability=(10, 0))


def row(**changes: object) -> Row:
    plain = Row(
        engine="vllm",
        since="0.32",
        until="0.33",
        machine="cpu-avx2",
        lever="prefix_cache",
        outcome="works",
        says="proved in a run",
        basis="seen 0.32.1 cpu-avx2",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def resolved(variant: Variant, version: str = "0.32.0") -> ResolvedEngine:
    return records.resolved(variant, engine_version=version)


def outcome(lever: str, machine: Machine, version: str = "0.32.0", **changes: object) -> str | None:
    """What the table says of a lever of the variant with these changes."""
    found = lookup(resolved(make_variant(**changes), version), machine)
    return next((row.outcome for row in found if row.lever.startswith(lever)), None)


def test_every_shipped_row_can_be_read_and_none_is_there_twice() -> None:
    rows = compatibility_rows("vllm")
    assert len(rows) > 50
    outcomes = {"works", "needs package", *compatibility.WARNINGS, *compatibility.STOPS}
    for each in rows:
        assert all(getattr(each, name) for name in ("engine", "lever", "says", "basis")), each
        assert each.outcome in outcomes, each
        assert machine_rank(each.machine) >= 0, each
        if each.outcome in compatibility.FAULTS:
            assert each.machine in ("any", "cpu", "cuda"), f"a stored run knows no more: {each}"
    keys = [(r.engine, r.since, r.until, r.machine, r.lever.lower()) for r in rows]
    assert len(set(keys)) == len(keys)
    assert all(r.says[-1] != "." and ";" in r.says for r in rows if r.outcome in ("fails",)), (
        "a sentence with its mend, which is printed inside another"
    )


def test_words_are_the_same_however_a_flag_was_written() -> None:
    written = lever_words(make_variant(engine_args=(("--kv-cache-dtype", "fp8"),)))
    plain = lever_words(make_variant(engine_args=(("kv_cache_dtype", "fp8"),)))
    assert written == plain == {"weights=W4A16", "kv_cache_dtype=fp8"}


def test_what_is_told_from_tensors_is_put_in_a_recipes_words() -> None:
    assert lever_words(make_variant(scheme="W8A8-INT8")) == {"weights=W8A8"}
    assert lever_words(make_variant(scheme="MXFP4-W4A4")) == {"weights=MXFP4"}
    assert lever_words(make_variant(scheme="MXFP4")) == {"weights=MXFP4A16"}
    recipe = make_variant(scheme="mixed", recipe_schemes=("W4A16", "W8A8"))
    assert lever_words(recipe) == {"weights=W4A16", "weights=W8A8"}


def test_the_architecture_counts_where_the_checkpoint_is_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}'
    )
    latent = {"model_path": str(tmp_path), "prefix_cache": True}
    assert outcome("prefix_cache", AVX2, **latent) == "no effect"
    assert outcome("prefix_cache", HOPPER, **latent) == "works"
    assert outcome("prefix_cache", AVX2, prefix_cache=True) == "works"


@pytest.mark.parametrize(
    ("machine", "scheme", "expected"),
    [
        (AVX2, "W8A16", "fails"),
        (HOPPER, "W8A16", "works"),
        (AVX2, "FP8", "fails"),
        (AVX512, "FP8", "fails"),
        (AVX2, "FP8_DYNAMIC", "works, slow"),
        (HOPPER, "FP8_DYNAMIC", "works"),
        (HOPPER, "FP8_BLOCK", "works"),
        (AVX2, "FP8_BLOCK", "fails"),
        (AVX512, "FP8_BLOCK", "doubtful"),
        (Machine(kind="cuda", capability=(8, 6)), "FP8_BLOCK", "works, slow"),
        (HOPPER, "NVFP4", "works, slow"),
        (HOPPER, "MXFP4", "works, slow"),
        (HOPPER, "NVFP4A16", "works"),
        (HOPPER, "MXFP4A16", "works"),
        (BLACKWELL, "NVFP4", None),
        (AVX2, "NVFP4A16", "fails"),
        (Machine(kind="cuda", capability=(8, 6)), "FP8_DYNAMIC", "works, slow"),
        (Machine(kind="cuda", capability=(7, 0)), "FP8_DYNAMIC", "fails"),
        (Machine(kind="cuda", capability=(7, 0)), "W4A16", "fails"),
        (Machine(kind="cuda"), "FP8_DYNAMIC", "works"),
        (Machine(kind="cpu"), "W4A16", None),
    ],
)
def test_the_narrowest_machine_counts(machine: Machine, scheme: str, expected: str | None) -> None:
    change = {"scheme": scheme, "recipe_schemes": (scheme,)}
    assert outcome("weights", machine, **change) == expected


@pytest.mark.parametrize(
    ("version", "machine", "changes", "expected"),
    [
        ("0.26.0", HOPPER, {}, "doubtful"),
        ("0.26.0", HOPPER, {"env": (("VLLM_USE_V2_MODEL_RUNNER", "0"),)}, "works, slow"),
        ("0.26.0", AVX2, {}, "no effect"),
        ("0.32.0", HOPPER, {"env": (("VLLM_USE_V2_MODEL_RUNNER", "0"),)}, "no effect"),
    ],
)
def test_cascade_attention_needs_the_runner_that_has_it(
    version: str, machine: Machine, changes: dict[str, object], expected: str
) -> None:
    args = (("disable_cascade_attn", False),)
    found = outcome("disable_cascade_attn", machine, version, engine_args=args, **changes)
    assert found == expected


@pytest.mark.parametrize(
    ("args", "expected"), [({}, "doubtful"), ({"async_scheduling": False}, "works, slow")]
)
def test_cascade_attention_with_a_head_needs_synchronous_scheduling(
    args: dict[str, bool], expected: str
) -> None:
    head = Speculation(method="eagle3", num_tokens=2, draft_path="/head")
    asked = tuple({"disable_cascade_attn": False, **args}.items())
    env = (("VLLM_USE_V2_MODEL_RUNNER", "0"),)
    changes = {"engine_args": asked, "env": env, "speculation": head}
    assert outcome("disable_cascade_attn", HOPPER, "0.26.0", **changes) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), "doubtful"), ((("disable_padded_drafter_batch", True),), "works")],
)
def test_a_head_on_the_v1_runner_scores_rightly_where_it_drafts_later(
    options: tuple[tuple[str, bool], ...], expected: str
) -> None:
    head = Speculation(method="eagle3", num_tokens=2, draft_path="/head", options=options)
    changes = {"env": (("VLLM_USE_V2_MODEL_RUNNER", "0"),), "speculation": head}
    assert outcome("VLLM_USE_V2_MODEL_RUNNER", HOPPER, "0.26.0", **changes) == expected


def test_the_narrower_lever_counts() -> None:
    for backend, expected in (("CPU_ATTN", "works"), ("FLASH_ATTN", "no effect")):
        args = (("attention_backend", backend),)
        assert outcome("attention_backend", AVX2, engine_args=args) == expected


def test_what_is_set_beside_a_lever_is_narrower_but_hides_no_failure() -> None:
    def of(method: str, **changes: object) -> list[str]:
        speculation = Speculation(method=method, num_tokens=3, draft_path=None)
        variant = make_variant(speculation=speculation, **changes)
        found = lookup(resolved(variant), AVX2)
        return [row.says for row in found if row.lever.startswith("speculation=")]

    float32 = {"engine_args": (("dtype", "float32"),)}
    assert "drops the last matched block" in of("eagle", prefix_cache=True)[0]
    assert "needs CUDA" in of("ngram_gpu", **float32)[0]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.26.0", "works"), ("0.32.9+cpu", "works"), ("0.33.0", "removed"), ("dev", "removed")],
)
def test_a_row_ends_where_the_next_version_begins(version: str, expected: str) -> None:
    medusa = Speculation(method="medusa", num_tokens=3, draft_path="/heads")
    assert outcome("speculation=medusa", AVX2, version, speculation=medusa) == expected


def test_another_engine_is_not_spoken_of() -> None:
    other = replace(resolved(make_variant(scheme="W8A16")), engine="openai")
    assert lookup(other, AVX2) == ()


def test_versions_with_suffixes() -> None:
    assert version_of("0.32.1+cpu") == (0, 32, 1)
    assert version_of("0.33rc1") == (0, 33, 0)
    assert version_of("dev") > version_of("99.0")


@pytest.mark.parametrize(
    ("word", "capability", "expected"),
    [
        ("cuda<8.9", (8, 6), True),
        ("cuda<8.9", (8, 9), False),
        ("cuda>=8.9", (9, 0), True),
        ("cuda>=10.0", (9, 0), False),
        ("cuda=9.0", (9, 0), True),
        ("cuda", None, True),
        ("cuda<8.9", None, False),
        ("cpu", (9, 0), False),
    ],
)
def test_capabilities(word: str, capability: tuple[int, int] | None, expected: bool) -> None:
    assert machine_applies(word, Machine(kind="cuda", capability=capability)) is expected


def test_of_equals_the_newest_basis_counts_and_then_the_last() -> None:
    old, new = row(basis="seen 0.32.0 cpu-avx2", says="old"), row(says="new")
    assert most_specific([new, old]) == new
    again = replace(new, says="again")
    assert most_specific([new, old, again]) == again
    assert most_specific([]) is None


@pytest.mark.parametrize(
    ("basis", "said"),
    [
        ("seen 0.32.0 cpu-avx2", "observed with vllm 0.32.0 on cpu-avx2"),
        ("seen 0.26.0 H100", "observed with vllm 0.26.0 on H100"),
        ("read 0.29-0.33", "from the source of vllm 0.29-0.33"),
        ("reported 0.33", "reported for vllm 0.33"),
    ],
)
def test_a_basis_names_the_machine_that_it_was_observed_on(basis: str, said: str) -> None:
    assert row(basis=basis).sentence == f"proved in a run ({said})"


def test_every_basis_has_words() -> None:
    rows = [item for name in ("vllm", "sglang") for item in compatibility_rows(name)]
    assert all(item.sentence.startswith(item.says) for item in rows)


def test_what_is_slow_is_a_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "find_machine", lambda _kind: AVX512)
    (said,) = compatibility.cautions(resolved(make_variant(scheme="FP8")))
    assert said.startswith("weights=FP8*: FP8 weights took 51 s")
    assert said.endswith("(observed with vllm 0.29.0 on cpu-avx512)")
