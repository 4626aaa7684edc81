"""Schemes that whet does not write, and the command of the tool that does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, get_args

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.quote import shell_word
from whet.core.spec.recipe import Scheme

_NF4: Final = re.compile(r"(?i)nf4|bnb|bitsandbytes|fp4")
_GGUF: Final = re.compile(r"(?i)gguf|i?q[2-8]_.*")
_WITH_BITSANDBYTES: Final = (
    "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T, "
    "BitsAndBytesConfig as B; "
    'q = B(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"); '
    'M.from_pretrained({model}, quantization_config=q, dtype="auto").save_pretrained({out}); '
    "T.from_pretrained({model}).save_pretrained({out})"
)


def require_own_scheme(scheme: str | None, model: str, out: Path) -> None:
    """``UsageError`` for a scheme that whet does not know or does not write.

    Its sentence for NF4 and GGUF has the command that writes them from ``model`` to ``out``.
    """
    if scheme is None or scheme in (known := get_args(Scheme)):
        return
    if _NF4.fullmatch(scheme):
        code = _WITH_BITSANDBYTES.format(model=json.dumps(model), out=json.dumps(str(out)))
        raise UsageError(
            "--scheme: NF4 is written by bitsandbytes through transformers: pip install "
            f"bitsandbytes accelerate && python -c {shell_word(code)}"
        )
    if _GGUF.fullmatch(scheme):
        kind = "Q4_K_M" if scheme.upper() == "GGUF" else scheme.upper()
        whole, small = (shell_word(f"{out}-{name}.gguf") for name in ("F16", kind))
        raise UsageError(
            "--scheme: GGUF is written by llama.cpp, from a folder: python convert_hf_to_gguf.py "
            f"{shell_word(model)} --outtype f16 --outfile {whole} && llama-quantize {whole} "
            f"{small} {kind}"
        )
    raise UsageError(
        f"--scheme: unknown scheme {scheme!r}{did_you_mean(scheme.upper(), known)} (known: "
        f"{', '.join(known)}; NF4 and GGUF print the command of the tool that writes them)"
    )
