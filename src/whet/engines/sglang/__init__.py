"""SGLang on one NVIDIA GPU, 0.5.17 and later."""

from __future__ import annotations

from typing import Final

from whet.engines.base import (
    Counters,
    EngineProfile,
    Installation,
    LayerWords,
    Pages,
    Patterns,
    Scoring,
)
from whet.engines.failures import Failures, read_signs
from whet.engines.sglang.engine import SglangEngine, find_installed
from whet.engines.sglang.limits import build_problem, not_installed
from whet.engines.sglang.log import KERNELS, START_LINE, UNIT_KV_SCALE, read_log
from whet.engines.sglang.pages import COUNTERS, read_declared
from whet.engines.sglang.scoring import DIALECT

__all__ = ["ENGINE", "PROFILE", "SglangEngine", "find_installed"]

ENGINE: Final = SglangEngine
PROFILE: Final = EngineProfile(
    name="sglang",
    title="SGLang",
    read_log=read_log,
    read_declared=read_declared,
    start_line=START_LINE,
    patterns=Patterns(
        unit_kv_scale=UNIT_KV_SCALE,
        weight_fallbacks=("does not have native support", "Falling back to unoptimized"),
    ),
    layer_words=LayerWords(
        expected="names the scheme of every quantized layer",
        not_expected="loads the model without a quantization method",
        quantized="linear layers with a scheme of their own",
        unquantized="models loaded without a quantization method",
    ),
    kernels=KERNELS,
    pages=Pages(cache="/server_info"),
    counters=Counters(names=COUNTERS, caches_tokens=True, counts_every_prompt=True),
    failures=Failures(
        signs=read_signs("sglang"), ends_itself="Received sigquit from a child process"
    ),
    scoring=Scoring(dialect=DIALECT),
    installation=Installation(find=find_installed, missing=not_installed, problem=build_problem),
)
