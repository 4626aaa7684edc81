"""Kernels that a variant asks for, held against the kernels that the log names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.levers.builders import resolved
from tests.levers.planted import SILENT
from tests.levers.recorded import log
from whet.core.records.engine import Scalar
from whet.core.records.evidence import EngineFacts, Verdict
from whet.levers import claims, judge_start, labels, lever_args, problems

FP8_TOO = "Selected {}FP8ScaledMMLinearKernel for CompressedTensorsW8A8Fp8\n"
NO_KERNEL = (
    "(EngineCore pid=5) WARNING 11-23 03:21:42 [__init__.py:395] --linear-backend=machete has no "
    "kernel for this linear layer type; using automatic selection for that layer type.\n"
)


def made(value: Any, *, scheme: str = "W4A16", **args: Scalar) -> Any:
    flags = {**lever_args({"kernels": value}), **args}
    one = resolved(scheme=scheme)
    variant = replace(one.variant, engine_args=tuple(flags.items()), own_args=tuple(flags))
    return replace(one, variant=variant, device="cuda")


def judged(facts: EngineFacts, value: Any, *, kind: str = "kernels", scheme: str = "W4A16") -> Any:
    found: Mapping[str, Verdict] = {
        verdict.claim.kind: verdict
        for verdict in judge_start(made(value, scheme=scheme), facts, None)
    }
    return found.get(kind)


def humming(name: str = "h100_w4a16", kernel: str = "MacheteLinearKernel") -> EngineFacts:
    return log(name, (kernel, kernel.replace("Machete", "Humming").replace("Cutlass", "Humming")))


def test_a_library_for_weights_that_are_not_quantized_is_refused() -> None:
    [sentence] = problems(made("humming", scheme="16bit").variant)
    assert "leave kernels out" in sentence


@pytest.mark.parametrize(
    ("value", "scheme"),
    [
        ("auto", "16bit"),
        ("humming", "W4A16"),
        ("humming", "W4A8_FP8"),
        ("cutlass", "W4A8_FP8"),
        ("marlin", "FP8"),
        ("machete", "mixed"),
        ("b12x", "NVFP4"),
    ],
)
def test_a_library_that_may_have_one_is_not_refused(value: str, scheme: str) -> None:
    assert problems(made(value, scheme=scheme).variant) == ()


def test_weights_that_are_quantized_as_they_are_loaded_may_have_a_library() -> None:
    assert problems(made("marlin", scheme="16bit", quantization="fp8").variant) == ()


def test_the_engine_s_flags_and_labels() -> None:
    assert lever_args({"kernels": "humming"}) == {"linear_backend": "humming"}
    assert "linear_backend=humming" in labels(made("humming").variant)


def test_nothing_is_claimed_where_the_engine_chooses() -> None:
    assert "kernels" not in [claim.kind for claim in claims(made("auto"))]


def test_a_kernel_of_the_library_proves_it_and_the_weights() -> None:
    verdict = judged(humming(), "humming")
    assert verdict.outcome == "proved"
    assert "HummingLinearKernel for CompressedTensorsWNA16" in verdict.observed
    assert judged(humming(), "humming", kind="weights").outcome == "proved"


def test_what_the_start_took_is_told_with_it() -> None:
    more = "Model loading took 3.85 GiB memory and 41.7 seconds\n"
    facts = log("h100_w4a16", ("MacheteLinearKernel", "HummingLinearKernel"), more=more)
    assert "loaded in 42 s" in judged(facts, "humming").observed


def test_another_kernel_contradicts() -> None:
    verdict = judged(log("h100_w4a16"), "humming")
    assert verdict.outcome == "contradicted"
    assert "MacheteLinearKernel" in verdict.observed


def test_a_silent_log_proves_nothing() -> None:
    one = made("humming")
    found = {v.claim.kind: v.outcome for v in judge_start(one, log("h200_033_default"), SILENT)}
    assert found["kernels"] == "unproved"


def test_the_engine_s_own_word_that_it_chose_contradicts() -> None:
    facts = log("h100_w4a16", more=NO_KERNEL)
    assert judged(facts, "machete").outcome == "contradicted"


@pytest.mark.parametrize(
    ("kernel", "outcome"), [("Cutlass", "contradicted"), ("Humming", "proved")]
)
def test_every_kernel_of_a_mixed_checkpoint_counts(kernel: str, outcome: str) -> None:
    facts = log(
        "h100_w4a16",
        ("MacheteLinearKernel", "HummingLinearKernel"),
        more=FP8_TOO.format(kernel),
    )
    found = judge_start(made("humming", scheme="mixed"), facts, SILENT)
    assert {v.claim.kind: v.outcome for v in found}["kernels"] == outcome


def test_a_library_by_format_is_never_proved() -> None:
    config = '{"linear_backend_per_quant": {"mixed_precision": "machete"}}'
    found = judge_start(made("auto", kernel_config=config), log("h100_w4a16"), SILENT)
    assert {v.claim.kind: v.outcome for v in found}["settings"] == "unproved"


def test_a_fallback_that_was_asked_for_is_no_fault_of_the_weights() -> None:
    facts = humming("h100_fp8", "CutlassFP8ScaledMMLinearKernel")
    assert judged(facts, "humming", kind="weights", scheme="FP8").outcome == "proved"
    assert judged(facts, "auto", kind="weights", scheme="FP8").outcome == "contradicted"


W4A8 = ("CompressedTensorsWNA16", "CompressedTensorsW4A8Fp8")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ((("MacheteLinearKernel", "CutlassW4A8LinearKernel"), W4A8), "proved"),
        ((("MacheteLinearKernel", "HummingLinearKernel"), W4A8), "proved"),
        ((("MacheteLinearKernel", "HummingLinearKernel"),), "unproved"),
        ((), "contradicted"),
    ],
)
def test_four_bit_weights_with_fp8_activations(
    changes: tuple[tuple[str, str], ...], outcome: str
) -> None:
    found = judge_start(made("auto", scheme="W4A8_FP8"), log("h100_w4a16", *changes), SILENT)
    assert {v.claim.kind: v.outcome for v in found}["weights"] == outcome
