"""``whet init``: a file that ``whet check`` takes as it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from whet.core.errors import UsageError
from whet.core.spec import load_spec


@pytest.mark.parametrize("draft", [None, "./draft"])
def test_it_writes_a_spec_that_loads(whet: Whet, tmp_path: Path, draft: str | None) -> None:
    words = ["--draft", draft] if draft else []
    said = whet("init", "new/whet.yaml", "--model", "./model", *words)
    assert said.code == 0
    assert said.out.endswith("then run: whet check new/whet.yaml\n")
    spec = load_spec(tmp_path / "new" / "whet.yaml")
    assert spec.model.target == str(tmp_path / "new" / "model")
    methods = {item.speculation.method for item in spec.variants.values() if item.speculation}
    assert methods == {"draft_model" if draft else "ngram"}


def test_only_what_is_not_set_is_asked_for(whet: Whet, tmp_path: Path) -> None:
    price = "hardware.price_usd_per_hour"
    both = whet("init", "a.yaml").out
    assert (
        both == f"Wrote a.yaml. Next: set model.target and {price}, then run: whet check a.yaml\n"
    )
    model = whet("init", "b.yaml", "--model", "owner/name").out
    assert f"Next: set {price}, then run" in model
    device = whet("init", "c.yaml", "--model", "owner/name", "--device", "2x L4")
    assert device.out == "Wrote c.yaml. Next: whet check c.yaml --device '2x L4'\n"
    hardware = load_spec(tmp_path / "c.yaml").hardware
    assert hardware.price_source == "L4 on demand, 2026; put your own"
    assert 0.5 < hardware.price_usd_per_hour < 2
    assert "no GPU is known as 'L5'" in whet("init", "d.yaml", "--device", "L5").sentence(2)


def test_it_writes_to_a_fifo(whet: Whet, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    texts: list[str] = []
    reader = threading.Thread(target=lambda: texts.append((tmp_path / "fifo").read_text()))
    reader.start()
    assert whet("init", "fifo").code == 0
    reader.join(10)
    assert "model:" in texts[0]


def test_it_never_writes_over_a_file(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "whet.yaml").write_text("mine")
    said = whet("init").sentence(UsageError.exit_code)
    assert said == "whet.yaml exists; name another file or move it away"
    assert (tmp_path / "whet.yaml").read_text() == "mine"
