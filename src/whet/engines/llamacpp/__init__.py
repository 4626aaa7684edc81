"""llama.cpp: GGUF files on ``llama-server``."""

from __future__ import annotations

from typing import Final

from whet.engines.base import Counters, EngineProfile, Kernels, LayerWords, Pages
from whet.engines.failures import Failures, read_signs
from whet.engines.llamacpp.engine import LlamaCppEngine
from whet.engines.llamacpp.log import KERNELS, read_log
from whet.engines.llamacpp.pages import COUNTERS, read_declared

__all__ = ["ENGINE", "PROFILE"]

ENGINE: Final = LlamaCppEngine
PROFILE: Final = EngineProfile(
    name="llamacpp",
    title="llama.cpp",
    read_log=read_log,
    read_declared=read_declared,
    kernels=Kernels(schemes=KERNELS),
    layer_words=LayerWords(
        expected="counts the model's tensors by type, no matrix in 16 bits",
        not_expected="counts the model's tensors by type, all in 16 or 32 bits",
        quantized="tensors of quantized types",
        unquantized="matrices in 16 bits",
    ),
    pages=Pages(settings="/props"),
    counters=Counters(names=COUNTERS, caches_tokens=True),
    failures=Failures(signs=read_signs("llamacpp")),
)
