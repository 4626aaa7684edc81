"""The break-even map from spec to record, on servers whose rates follow from what they accept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.break_even_stage import Physics, at, mapped, spec_with_draft, stage
from whet.core.errors import InfeasibleError, UsageError
from whet.core.records import BreakEvenMap, encode
from whet.core.records.codec import decode
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.break_even.map import MapRequest, length_estimate, map_spec, read_map

ACCEPTED = {"draft": 3.0, "noise0.5": 1.0, "noise1": 0.0}


def request_of(folder: Path, **change: Any) -> MapRequest:
    return MapRequest(**{"spec": spec_with_draft(folder), "ks": (4,), "levels": (0.5, 1), **change})


def test_a_rate_of_length_times_steps_breaks_even_at_the_plain_rate_over_the_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Plain makes twice the tokens of a step: L* = 2 whatever the levels; the draft has 4."""
    physics = stage(monkeypatch, Physics(accepted=ACCEPTED))
    request = request_of(tmp_path, spec=spec_with_draft(tmp_path, starts=2))
    found = mapped(request, tmp_path / "map")
    servers = ["plain", "k4.draft", "k4.noise0.5", "k4.noise1"]
    assert physics.engine.started == servers + servers[::-1]
    assert [(point.batch_size, point.k) for point in found.points] == [(1, 4), (2, 4)]
    point = at(found, 1, 4)
    assert point.l_star is not None
    assert point.l_star.value == pytest.approx(2.0, rel=1e-6)
    assert point.spread == pytest.approx(0.0, abs=1e-6)
    assert point.fixed_share == pytest.approx(0.0, abs=1e-6)
    assert (point.reachable, point.pays) == ("yes", "yes")
    assert point.change is not None
    assert point.change.value == pytest.approx(2.0, rel=1e-6)
    assert point.headroom is not None
    assert point.headroom.value == pytest.approx(5 / 4, rel=1e-6)
    assert (found.method, found.draft, found.base) == ("draft_model", "draft", "fp16")


def test_nothing_accepted_is_a_level_of_length_1_for_a_worse_draft_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage(monkeypatch, Physics(accepted=ACCEPTED))
    found = mapped(request_of(tmp_path), tmp_path / "map")
    random = next(item for item in at(found, 2, 4).levels if item.level == "noise 1")
    assert random.acceptance_length.value == 1.0
    assert "not one token was accepted" in str(random.note)
    assert found.left_out == ()


def test_next_to_nothing_accepted_is_a_level_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One token in a hundred drafts: as a claim on a draft it proves nothing."""
    stage(monkeypatch, Physics(accepted=ACCEPTED | {"noise1": 0.01}))
    found = mapped(request_of(tmp_path), tmp_path / "map")
    random = next(item for item in at(found, 1, 4).levels if item.level == "noise 1")
    assert random.acceptance_length.value == pytest.approx(1.01)
    assert "hardly a token was accepted" in str(random.note)
    assert found.left_out == ()


def test_nothing_accepted_contradicts_the_draft_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage(monkeypatch, Physics(accepted=ACCEPTED | {"draft": 0.0}))
    point = at(found := mapped(request_of(tmp_path), tmp_path / "map"), 1, 4)
    assert point.real is None
    assert point.pays == "undecided"
    assert {item.level for item in point.levels} == {"noise 0.5", "noise 1"}
    assert [(item.variant, item.batch_size) for item in found.left_out] == [
        ("k4.draft", 1),
        ("k4.draft", 2),
    ]
    assert "not one token accepted" in found.left_out[0].reason


def test_a_level_without_drafts_is_no_level(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage(monkeypatch, Physics(accepted=ACCEPTED, silent={"k4.noise1"}))
    found = mapped(request_of(tmp_path), tmp_path / "map")
    assert {item.variant for item in found.left_out} == {"k4.noise1"}
    assert "speculation" in found.left_out[0].reason


def test_a_plain_server_too_fast_to_catch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six tokens in the time of a step, and K + 1 = 5."""
    stage(monkeypatch, Physics(accepted=ACCEPTED, plain=6.0))
    request = request_of(tmp_path, spec=spec_with_draft(tmp_path, starts=2))
    point = at(mapped(request, tmp_path / "map"), 1, 4)
    assert point.l_star is not None
    assert point.l_star.value == pytest.approx(6.0, rel=1e-6)
    assert (point.reachable, point.pays) == ("no", "no")


def test_one_start_names_the_break_even_and_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage(monkeypatch, Physics(accepted=ACCEPTED))
    point = at(mapped(request_of(tmp_path), tmp_path / "map"), 1, 4)
    for figure in (point.l_star, point.headroom, point.change):
        assert figure is not None
        assert (figure.low, figure.high) == (None, None)
    assert (point.reachable, point.pays) == ("undecided", "undecided")


def test_an_interrupted_map_goes_on_and_takes_another_k(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    physics = stage(monkeypatch, Physics(accepted=ACCEPTED))
    physics.engine.stop_at = 2
    asked = request_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        mapped(asked, tmp_path / "map")
    physics.engine.stop_at = None
    physics.engine.started.clear()
    mapped(asked, tmp_path / "map", resume=True)
    assert physics.engine.started == ["k4.noise0.5", "k4.noise1"]
    physics.engine.started.clear()
    found = mapped(replace(asked, ks=(2, 4)), tmp_path / "map", resume=True)
    assert physics.engine.started == ["k2.draft", "k2.noise0.5", "k2.noise1"]
    assert {point.k for point in found.points} == {2, 4}


def test_the_map_is_read_again_from_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage(monkeypatch, Physics(accepted=ACCEPTED))
    found = mapped(request_of(tmp_path), tmp_path / "map")
    store = RunStore.read(tmp_path / "map")
    assert read_map(Run(store), base="fp16") == found
    assert store.get("break_even", "map", BreakEvenMap) == found
    assert decode(BreakEvenMap, encode(found)) == found


def test_a_gpu_sets_the_length_of_one_and_the_same_draft(tmp_path: Path) -> None:
    spec = map_spec(request_of(tmp_path, levels=(0, 0.5, 1)), tmp_path, synthetic=True)
    lengths = {
        name: dict(item.speculation.options).get("synthetic_acceptance_length")
        for name, item in spec.variants.items()
        if item.speculation
    }
    assert lengths == {"k4.draft": None, "k4.length5": 5.0, "k4.length3": 3.0, "k4.length1": 1.0}
    assert {item.speculation.draft for item in spec.variants.values() if item.speculation} == {None}
    assert spec.baseline == "plain"


def test_a_method_without_a_draft_has_its_own_level_alone_on_a_cpu(tmp_path: Path) -> None:
    variants = {"fp16": {}, "gram": {"prefix_cache": True, "speculation": {"method": "ngram"}}}
    spec = spec_with_draft(tmp_path, variants=variants)
    asked = MapRequest(spec=spec, ks=(2,), base="gram")
    made = map_spec(asked, tmp_path, synthetic=False)
    assert set(made.variants) == {"plain", "k2.draft"}
    assert made.variants["plain"].prefix_cache
    assert made.variants["plain"].speculation is None


def test_groups_of_the_spec_s_own_variants_are_not_the_map_s(tmp_path: Path) -> None:
    spec = spec_with_draft(tmp_path)
    load = spec.load.model_copy(update={"together": (tuple(spec.variants),)})
    asked = MapRequest(spec=spec.model_copy(update={"load": load}), ks=(2,))
    assert map_spec(asked, tmp_path, synthetic=True).load.together == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base": "fp61"}, "did you mean 'fp16'"),
        ({"ks": (0,)}, "--k 2,4,6"),
        ({"ks": ()}, "--k 2,4,6"),
        ({"levels": (1.5,)}, "from 0 to 1"),
    ],
)
def test_what_cannot_be_asked(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        map_spec(request_of(tmp_path, **change), tmp_path, synthetic=False)


def test_nothing_to_speculate_with(tmp_path: Path) -> None:
    model = {"target": str(tmp_path / "target")}
    with pytest.raises(UsageError, match=r"set model\.draft"):
        map_spec(
            request_of(tmp_path, spec=spec_with_draft(tmp_path, model=model)),
            tmp_path,
            synthetic=False,
        )


def test_a_length_has_the_interval_of_its_bounded_variance() -> None:
    """200 accepted in 100 steps of K = 4: variance at most 2·2, so ± 1.96 · 2 ÷ 10."""
    found = length_estimate(200, 100, 4)
    assert (found.low, found.value, found.high) == pytest.approx((2.608, 3.0, 3.392))
    assert length_estimate(0, 100, 4).high == 1.0


def test_servers_come_up_so_many_at_a_time(tmp_path: Path) -> None:
    groups = [("plain", "k4.draft"), ("k4.noise0.5", "k4.noise1")]
    two = map_spec(request_of(tmp_path, together=2), tmp_path, synthetic=False)
    assert two.load.together == tuple(groups)
    three = map_spec(request_of(tmp_path, together=3), tmp_path, synthetic=False)
    assert three.load.together == (("plain", "k4.draft", "k4.noise0.5"),), "the last is alone"
    with pytest.raises(UsageError, match="--together 0: one server or more"):
        map_spec(request_of(tmp_path, together=0), tmp_path, synthetic=False)


def test_a_map_is_not_measured_without_its_draft(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run would leave the variant out and go on; a map of the rest says nothing."""
    physics = stage(monkeypatch, Physics(accepted=ACCEPTED))
    awq = {"speculation": {"draft": "awq"}}
    spec = spec_with_draft(
        tmp_path,
        recipes={"awq": {"method": "awq"}},
        variants={"fp16": {}, "self": awq},
        model={"target": str(tmp_path / "target")},
    )
    request = request_of(tmp_path, spec=spec, levels=())
    write_tiny_llama(tmp_path / "target", intermediate_size=320)
    with pytest.raises(InfeasibleError, match=r"without k4\.draft: recipes\.awq: .*320 inputs"):
        mapped(request, tmp_path / "map")
    assert physics.engine.started == []
