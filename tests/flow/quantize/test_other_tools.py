"""The commands of the tools that write NF4 and GGUF are whole and safe to paste."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from whet.core.errors import UsageError
from whet.flow.quantize.other_tools import require_own_scheme

MODEL, OUT = "a model's folder", Path("out folder")


def words(scheme: str) -> list[str]:
    with pytest.raises(UsageError) as refused:
        require_own_scheme(scheme, MODEL, OUT)
    return shlex.split(str(refused.value))


def test_nf4_is_a_line_of_python() -> None:
    *_, python, flag, code = words("NF4")
    assert (python, flag) == ("python", "-c")
    strings = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
    assert {MODEL, str(OUT), "nf4"} <= strings


@pytest.mark.parametrize(("scheme", "kind"), [("GGUF", "Q4_K_M"), ("q8_0", "Q8_0")])
def test_gguf_is_two_commands(scheme: str, kind: str) -> None:
    said = words(scheme)
    command = said[said.index("python") :]
    whole = "out folder-F16.gguf"
    assert command == [
        *("python", "convert_hf_to_gguf.py", MODEL, "--outtype", "f16", "--outfile", whole),
        *("&&", "llama-quantize", whole, f"out folder-{kind}.gguf", kind),
    ]


def test_whets_own_schemes_pass() -> None:
    for scheme in (None, "W4A16", "FP8_BLOCK", "NVFP4"):
        require_own_scheme(scheme, MODEL, OUT)
