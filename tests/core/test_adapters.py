"""Which adapter each request names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from whet.core.errors import UsageError
from whet.core.spec import parse_spec
from whet.levers.lora import adapter_order, adapters_words

NAMES = [f"a{n}" for n in range(10)]


def test_adapters_are_used_in_turn_without_skew() -> None:
    assert adapter_order(NAMES[:3], 5, skew=0.0, seed=1) == ["a0", "a1", "a2", "a0", "a1"]


def test_skewed_use_follows_zipf_and_repeats_with_its_seed() -> None:
    order = adapter_order(NAMES, 20_000, skew=1.0, seed=3)
    assert order == adapter_order(NAMES, 20_000, skew=1.0, seed=3)
    counts = Counter(order)
    whole = sum(1 / rank for rank in range(1, 11))
    for rank, name in enumerate(NAMES, start=1):
        assert counts[name] / 20_000 == pytest.approx(1 / rank / whole, abs=0.015)


def test_many_adapters_are_a_number() -> None:
    assert adapters_words(NAMES[:2]) == "a0, a1"
    assert adapters_words(NAMES) == "10 adapters"


def spec(loras: object, base: Path, **more: object) -> object:
    data = {
        "name": "x",
        "model": {"target": "owner/name"},
        "hardware": {"price_usd_per_hour": 1},
        "baseline": "v",
        "variants": {"v": {"loras": loras, **more}},
    }
    return parse_spec(data, base=base).variants["v"].loras


def test_a_folder_of_adapters_is_each_of_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / "adapter_config.json").write_text("{}")
    (tmp_path / "adapters" / "notes").mkdir()
    folder = tmp_path.resolve() / "adapters"
    assert spec("./adapters", tmp_path) == {"a": str(folder / "a"), "b": str(folder / "b")}


def test_a_folder_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no folder with an adapter_config"):
        spec("./adapters", tmp_path)


def test_skew_needs_adapters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lora_skew needs loras"):
        spec({}, tmp_path, lora_skew=1.0)
