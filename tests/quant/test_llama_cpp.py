"""llama.cpp's converter as an external program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tiny_llama
from whet.core.errors import QuantizationError
from whet.quant.llama_cpp import write_gguf


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_checkpoint_with_code_of_its_own_is_not_converted(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    write_tiny_llama(folder)
    file = folder / name
    stored = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**stored, "auto_map": {"AutoTokenizer": "evil.Tokenizer"}}))
    converter = tmp_path / "converter.py"
    converter.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(QuantizationError, match="auto_map"):
        write_gguf(folder, tmp_path / "out.gguf", converter)
    assert not (tmp_path / "ran").exists()
