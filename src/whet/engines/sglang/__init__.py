"""SGLang on one NVIDIA GPU, 0.5.17 and later."""

from __future__ import annotations

from typing import Final

from whet.engines.base import EngineProfile, LayerWords, Patterns
from whet.engines.sglang.engine import SglangEngine, find_installed
from whet.engines.sglang.failures import FAILURES
from whet.engines.sglang.kernels import KERNELS, SLOW_ATTENTION
from whet.engines.sglang.limits import installation_problem
from whet.engines.sglang.log import START_LINE, UNIT_KV_SCALE, read_log, read_notices
from whet.engines.sglang.pages import COUNTERS, read_declared

__all__ = ["ENGINE", "PROFILE", "SglangEngine", "find_installed"]

ENGINE: Final = SglangEngine
PROFILE: Final = EngineProfile(
    name="sglang",
    title="SGLang",
    read_log=read_log,
    read_notices=read_notices,
    read_declared=read_declared,
    patterns=Patterns(
        unit_kv_scale=UNIT_KV_SCALE,
        weight_fallbacks=("does not have native support", "Falling back to unoptimized"),
    ),
    kernels=KERNELS,
    load_time_schemes={"fp8": "FP8"},
    layer_words=LayerWords(
        expected="names the scheme of every quantized layer",
        not_expected="loads the model without a quantization method",
        quantized="linear layers with a scheme of their own",
        unquantized="models loaded without a quantization method",
    ),
    cache_page="/server_info",
    caches_tokens=True,
    counts_every_prompt=True,
    slow_attention=SLOW_ATTENTION,
    failures=FAILURES,
    counter_names=COUNTERS,
    find_installed=find_installed,
    installation_problem=installation_problem,
    start_line=START_LINE,
    dialect="sglang",
    ends_itself="Received sigquit from a child process",
)
