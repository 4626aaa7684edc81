"""The quantized checkpoints of a run, and what is said of the text they were fitted on."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.stage import prepared, recorder, tiny_spec
from whet import quant
from whet.core.protocols import Silent
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.store import RunStore
from whet.flow.run.measure.quantize import quantize_recipes


@dataclass
class Heard(Silent):
    """An observer that remembers what it was warned of."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def sharpen(folder: Path, source: Path, **change: Any) -> tuple[QuantizedCheckpoint, list[str]]:
    """Quantize in a run whose calibration text is ``source``; the record and the warnings."""
    calibration = {"source": str(source), "samples": 64, "max_tokens": 256}
    spec = tiny_spec(
        folder,
        recipes={"small": {"method": "awq", "calibration": calibration}},
        variants={"fp16": {}, "small": {"weights": "small"}},
        **change,
    )
    heard = Heard()
    with RunStore.open(folder / "run") as store:
        quantize_recipes(prepared(spec, store), recorder(store, heard))
        done = store.get("quantized", "small", QuantizedCheckpoint)
    assert done is not None
    return done, heard.warnings


def test_what_the_reader_noticed_is_said_too(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"the order {i}"}]} for i in range(8)]
    log.write_text("\n".join(map(json.dumps, rows)) + '\n{"messages": [', encoding="utf-8")
    done, warnings = sharpen(tmp_path, log)
    assert done.warnings == (
        "the last line (log.jsonl:9) is incomplete; all other lines were read",
    )
    assert warnings == [f"small: {done.warnings[0]}"]


SMALL = {"method": "rtn", "scheme": "FP8_DYNAMIC"}


def test_a_runs_own_held_out_text_chooses_the_method(tmp_path: Path) -> None:
    """The stage's text has one conversation, and its calibration text is another."""
    recipe = {"method": "auto", "group_size": 64, "calibration": {"samples": 16}}
    spec = tiny_spec(
        tmp_path, recipes={"w4": recipe}, variants={"fp16": {}, "w4": {"weights": "w4"}}
    )
    with RunStore.open(tmp_path / "run") as store:
        quantize_recipes(prepared(spec, store), recorder(store))
        done = store.get("quantized", "w4", QuantizedCheckpoint)
    assert done is not None
    assert done.choice is not None
    assert done.method == next(iter(done.choice.kl))
    assert done.choice.difference.samples == 8


def test_a_recipe_that_only_drafts_is_quantized_too(tmp_path: Path) -> None:
    """``idle`` is used by nobody."""
    spec = tiny_spec(
        tmp_path,
        recipes={"drafts": SMALL, "serves": SMALL, "idle": SMALL},
        variants={
            "fp16": {"speculation": {"draft": "drafts"}},
            "w8": {"weights": "serves", "speculation": {"draft": "serves"}},
        },
    )
    with RunStore.open(tmp_path / "run") as store:
        job = prepared(spec, store)
        quantize_recipes(job, recorder(store))
        made = {name for name in spec.recipes if store.done("quantized", name)}
        assert made == {"drafts", "serves"}
        speculation = job.resolved[0].variant.speculation
        assert speculation is not None
        assert (Path(str(speculation.draft_path)) / "model.safetensors").exists()


def test_a_variant_that_is_left_out_has_nothing_quantized(tmp_path: Path) -> None:
    spec = tiny_spec(
        tmp_path,
        recipes={"drafts": SMALL},
        variants={"fp16": {}, "out": {"speculation": {"draft": "drafts"}}},
    )
    with RunStore.open(tmp_path / "run") as store:
        job = prepared(spec, store)
        kept = tuple(item for item in job.resolved if item.variant.name != "out")
        quantize_recipes(replace(job, resolved=kept), recorder(store))
        assert not store.done("quantized", "drafts")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The recipes of each pass over the calibration text."""
    seen: list[list[str]] = []
    quantize_many = quant.quantize_many

    def counted(source: Path, wanted: Any, **more: Any) -> Any:
        seen.append(list(wanted))
        return quantize_many(source, wanted, **more)

    monkeypatch.setattr("whet.quant.quantize_many", counted)
    return seen


def quantized(folder: Path, run: str, **recipes: Any) -> tuple[dict[str, str], list[str]]:
    """Quantize a variant per recipe in the run ``run``; weights by recipe, and the warnings."""
    variants = {"fp16": {}, **{name: {"weights": name} for name in recipes}}
    spec = tiny_spec(folder, recipes=recipes, variants=variants)
    heard = Heard()
    with RunStore.open(folder / run, resume=True) as store:
        quantize_recipes(prepared(spec, store), recorder(store, heard))
        made = store.keyed("quantized", QuantizedCheckpoint)
    return {name: each.weights_sha256 for name, each in made.items()}, heard.warnings


def test_recipes_share_a_pass_and_a_host_short_of_memory_takes_more(
    tmp_path: Path, passes: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = {"w4": {"method": "rtn"}, "w8": {"scheme": "W8A16", "method": "rtn"}, "f8": SMALL}
    together, _ = quantized(tmp_path, "one", **recipes)
    monkeypatch.setattr("whet.flow.run.measure.quantize._HOST_SHARE", 0.0)
    alone, _ = quantized(tmp_path, "many", **recipes)
    assert passes == [["w4", "w8", "f8"], ["w4"], ["w8"], ["f8"]]
    assert set(together) == set(recipes)
    assert together == alone


def test_servers_inherit_nothing_that_quantizing_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch names its caches in the process' variables as it compiles."""
    before, whole = dict(os.environ), quant.quantize_many

    def compiling(*args: Any, **options: Any) -> Any:
        os.environ["TRITON_CACHE_DIR"] = str(tmp_path)
        return whole(*args, **options)

    monkeypatch.setattr("whet.quant.quantize_many", compiling)
    assert set(quantized(tmp_path, "run", w4={"method": "rtn"})[0]) == {"w4"}
    assert os.environ.keys() == before.keys()


def test_recipes_of_two_calibration_texts_share_no_pass(
    tmp_path: Path, passes: list[list[str]]
) -> None:
    few = {**SMALL, "calibration": {"samples": 4}}
    made, _ = quantized(tmp_path, "run", a=SMALL, few=few, b=SMALL)
    assert passes == [["a", "b"], ["few"]]
    assert made["a"] == made["b"] == made["few"], "rounding reads no text"


def test_what_is_finished_is_not_made_again(tmp_path: Path, passes: list[list[str]]) -> None:
    recipes = {"a": SMALL, "b": {"method": "rtn"}}
    first = quantized(tmp_path, "run", **recipes)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "b")
    assert quantized(tmp_path, "run", **recipes) == first
    assert passes == [["a", "b"], ["b"]]


def test_one_recipe_that_fails_stops_no_other_of_its_pass(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "run" / "checkpoints" / "a")
    made, warnings = quantized(tmp_path, "run", a=SMALL, b=SMALL)
    assert set(made) == {"b"}
    assert any(each.startswith("a is left out: ") for each in warnings)
