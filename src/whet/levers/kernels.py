"""Which library multiplies the quantized linear layers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from whet.core.flags import parse_json, plain_args
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim, EngineFacts
from whet.engines import EngineProfile
from whet.levers.base import Lever, Outcome, Start, claim_per_start

Library = Literal[
    "auto", "aiter", "b12x", "conch", "cutlass", "deep_gemm", "emulation", "exllama", "fbgemm",
    "flashinfer_b12x", "flashinfer_cudnn", "flashinfer_cutedsl", "flashinfer_cutlass",
    "flashinfer_trtllm", "humming", "machete", "marlin", "torch", "triton",
]  # fmt: skip
Format = Literal[
    "fp8_block_w8a8", "fp8_w8a8", "int8_w8a8", "mixed_precision", "mxfp4", "mxfp6", "mxfp8",
    "nvfp4_w4a16", "nvfp4_w4a4", "w8a16_fp8",
]  # fmt: skip
"""vLLM's names of the formats; ``mixed_precision`` are integers below the activations' bits."""
_PER_FORMAT: Final = "linear_backend_per_quant"
_ALL: Final = ""
_KINDS: Final = (
    ("BlockScaled", ("fp8_block_w8a8",)),
    ("FP8", ("fp8_w8a8", "w8a16_fp8", "fp8_block_w8a8")),
    ("Int8ScaledMM", ("int8_w8a8",)),
    ("(?i:mxfp4)", ("mxfp4",)),
    ("(?i:mxfp6)", ("mxfp6",)),
    ("(?i:mxfp8)", ("mxfp8",)),
    ("NvFp4", ("nvfp4_w4a4", "nvfp4_w4a16")),
    ("", ("mixed_precision",)),
)
"""What a kernel's name says of the formats that it takes; the first that matches counts."""


class Kernels(Lever):
    """``kernels``: library of the quantized linear layers, for every format or for each."""

    name = "kernels"
    spec_type = Library | dict[Format, Library]

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """``--linear-backend``, or its map by format."""
        if isinstance(value, dict):
            return {"kernel_config": json.dumps({_PER_FORMAT: value})}
        return {"linear_backend": value}

    def problem(self, variant: Variant) -> str | None:
        """A library for weights that are not quantized; vLLM says what it has no kernel for."""
        libraries = requested_libraries(variant)
        plain = variant.scheme in UNQUANTIZED and "quantization" not in plain_args(variant)
        if not libraries or not plain:
            return None
        return (
            f"kernels: {', '.join(libraries.values())} chooses how quantized weights run, "
            f"and these are {variant.scheme}; leave kernels out"
        )

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where a library is requested."""
        if libraries := requested_libraries(resolved.variant):
            named = ", ".join(
                library if kind == _ALL else f"{library} for {kind}"
                for kind, library in libraries.items()
            )
            yield claim_per_start(
                "kernels",
                f"quantized linear layers run on kernels of {named}",
                "the log names such a kernel for every format, and no other",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Every kernel that the log names, of the model and of a draft."""
        libraries = requested_libraries(start.variant)
        refusal = re.compile(start.profile.patterns.kernels_refused)
        refused = tuple(n for n in start.facts.notices if refusal.search(n))
        if refused:
            return "contradicted", f"the engine chose by itself: {refused[0]}", refused
        lines = [k for k in start.facts.weight_kernels if not k.endswith(" for experts")]
        judged = {line: _library_of(line, libraries) for line in lines}
        known = start.profile.kernels.libraries
        matches = {
            line: re.match(known.get(library, "(?!)"), line) is not None
            for line, library in judged.items()
            if library is not None
        }
        wrong = [line for line, right in matches.items() if not right]
        if wrong:
            return "contradicted", f"another kernel runs: {wrong[0]}", tuple(wrong)
        silent = set(libraries.values()) - {judged[line] for line in matches}
        if silent or not matches:
            names = ", ".join(sorted(silent))
            return "unproved", f"the log names no kernel of {names}", tuple(lines)
        return "proved", f"{', '.join(matches)}{_times(start.facts)}", tuple(matches)


def requested_libraries(variant: Variant) -> dict[str, str]:
    """The library by format, ``""`` for all others; empty where the engine chooses."""
    args = plain_args(variant)
    whole = parse_json(args.get("kernel_config", "")) or {}
    own = whole if isinstance(whole, dict) else {}
    libraries = {_ALL: args.get("linear_backend", own.get("linear_backend", "auto"))}
    libraries |= own.get(_PER_FORMAT) or {}
    plain = {kind: str(name).lower().replace("-", "_") for kind, name in libraries.items()}
    return {kind: name for kind, name in plain.items() if name != "auto"}


def requested_kernels(
    variant: Variant, profile: EngineProfile, among: frozenset[str]
) -> frozenset[str]:
    """Those of the kernels ``among`` that a requested library has."""
    patterns = [
        profile.kernels.libraries.get(library, "(?!)")
        for library in requested_libraries(variant).values()
    ]
    return frozenset(k for k in among if any(re.match(pattern, k) for pattern in patterns))


def _library_of(line: str, libraries: Mapping[str, str]) -> str | None:
    """The library requested for the kernel of a line; None where the engine may choose."""
    kernel = line.split(" ", 1)[0]
    kinds = next(kinds for pattern, kinds in _KINDS if re.search(pattern, kernel))
    return next((libraries[kind] for kind in kinds if kind in libraries), libraries.get(_ALL))


def _times(facts: EngineFacts) -> str:
    """Some libraries compile at the start, while weights are loaded or the model warms up."""
    parts = (("loaded", facts.load_s), ("warmed up", facts.init_s))
    times = [f"{what} in {seconds:.0f} s" for what, seconds in parts if seconds is not None]
    return f"; {', '.join(times)}" if times else ""
