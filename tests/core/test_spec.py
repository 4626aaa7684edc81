"""The YAML edge: what a person may write, and what they are told when it is wrong."""

from pathlib import Path

import pytest
import yaml

from whet.cli.init import template
from whet.core.errors import UsageError
from whet.core.records.codec import decode
from whet.core.spec import Spec, load_spec, parse_spec

MINIMAL = {
    "name": "m",
    "model": {"target": "./t", "draft": "./d"},
    "hardware": {"price_usd_per_hour": 1.0},
}


def told(change: dict[str, object]) -> str:
    with pytest.raises(UsageError) as caught:
        parse_spec({**MINIMAL, **change}, base=Path("/base"))
    return str(caught.value)


def test_a_minimal_spec_has_the_standard_variants() -> None:
    spec = parse_spec(dict(MINIMAL), base=Path("/base"))
    assert list(spec.variants) == ["fp16", "fp16+cache", "awq+cache", "awq+draft+cache"]
    assert [v.prefix_cache for v in spec.variants.values()] == [False, True, True, True]
    assert spec.load.concurrency == (1, 4, 8, 16, 32)
    assert spec.load.warmup_requests == 20


@pytest.mark.parametrize(
    ("tier", "price"), [("H100 SXM", 2.95), ("2x L4", 1.60), ("rtx 4090", 0.44)]
)
def test_a_tier_alone_takes_the_price_of_the_table(tier: str, price: float) -> None:
    hardware = parse_spec({**MINIMAL, "hardware": {"tier": tier}}, base=Path("/base")).hardware
    assert hardware.price_usd_per_hour == pytest.approx(price)
    assert hardware.price_source is not None
    assert "2026" in hardware.price_source
    own = {"tier": tier, "price_usd_per_hour": 1.25}
    spec = parse_spec({**MINIMAL, "hardware": own}, base=Path("/base"))
    assert spec.hardware.price_usd_per_hour == 1.25
    assert spec.hardware.price_source is None


def test_a_tier_without_a_known_price_needs_one() -> None:
    assert "hardware.price_usd_per_hour" in told({"hardware": {"tier": "Gaudi 3"}})


def test_relative_paths_count_from_the_spec_file() -> None:
    spec = parse_spec({**MINIMAL, "quality": {"tasks": "tasks.jsonl"}}, base=Path("/base"))
    assert spec.model.target == "/base/t"
    assert spec.quality.tasks == Path("/base/tasks.jsonl")


def test_a_hub_id_stays_a_hub_id() -> None:
    spec = parse_spec(
        {**MINIMAL, "model": {"target": "org/name", "draft": "org/d"}}, base=Path("/base")
    )
    assert spec.model.target == "org/name"


def test_an_unknown_key_names_the_nearest_one() -> None:
    assert told({"load": {"concurency": [1]}}) == (
        "unknown key 'concurency' in load; did you mean 'concurrency'?"
    )
    assert "did you mean 'workload'?" in told({"worklaod": {}})
    nested = told({"recipes": {"awq": {"calibration": {"sample": 3}}}})
    assert nested == "unknown key 'sample' in recipes.awq.calibration; did you mean 'samples'?"
    assert "did you mean 'prefix_cache'?" in told({"variants": {"fp16": {"prefx_cache": True}}})


@pytest.mark.parametrize("size", [-1, 0, 1.5, "four", True])
def test_a_batch_size_is_a_whole_number_above_zero(size: object) -> None:
    message = told({"load": {"concurrency": [size]}})
    assert "load.concurrency" in message
    assert repr(size) in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"baseline": "fp61"}, "did you mean 'fp16'?"),
        ({"variants": {"fp16": {"weights": "awk"}}}, "did you mean 'awq'?"),
        ({"model": {"target": "t"}}, "set model.draft"),
        ({"objective": {"recommend_ttft_ms": 300}}, "must be one of ttft_ms"),
        ({"hardware": {"price_usd_per_hour": 0}}, "hardware.price_usd_per_hour"),
        ({"name": "../x"}, "cannot be used as a folder name"),
        ({"variants": {"fp16": {}, "../x": {}}}, "cannot be used as a folder name"),
        ({"model": {}}, "'model.target' is missing"),
    ],
)
def test_a_wrong_value_gets_one_sentence(change: dict[str, object], said: str) -> None:
    message = told(change)
    assert said in message
    assert "\n" not in message


def test_files_that_are_no_spec(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="whet init"):
        load_spec(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(UsageError, match="not valid YAML at line"):
        load_spec(broken)
    broken.write_text("just words")
    with pytest.raises(UsageError, match="must hold keys"):
        load_spec(broken)


@pytest.mark.parametrize("order", ["abba", "Interleaved", "", None, 1])
def test_an_unknown_order_is_told_with_the_known_ones(order: object) -> None:
    message = told({"load": {"order": order}})
    assert message == f"load.order: must be 'blocks' or 'interleaved' (got {order!r})"


@pytest.mark.parametrize("draft", [None, "./draft"])
def test_the_template_is_a_valid_spec_with_the_defaults(draft: str | None) -> None:
    data = yaml.safe_load(template("./model", draft))
    spec = parse_spec(data, base=Path("/base"))
    plain = parse_spec(
        {
            "name": "x",
            "model": {"target": "t", "draft": "d"},
            "hardware": {"price_usd_per_hour": 1},
        },
        base=Path("/base"),
    )
    for section in ("workload", "load", "quality", "objective", "recipes", "baseline"):
        assert getattr(spec, section) == getattr(plain, section), section
    assert list(spec.variants) == list(plain.variants)


def test_the_template_shows_every_key() -> None:
    text = template("./model", "./draft")
    sections = ("workload", "load", "quality", "objective", "hardware", "engine")
    for section in sections:
        keys = Spec.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        for key in set(keys) - {"url"}:
            assert f"{key}:" in text, f"{section}.{key}"


def write(folder: Path, text: str) -> Path:
    path = folder / "whet.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("name: a\nhardware: {}\nname: b\n", 3, "name"),
        ("variants:\n  fp16: {}\n  awq: {}\n  fp16: {prefix_cache: true}\n", 4, "fp16"),
        ("load: {trials: 1, trials: 2}\n", 1, "trials"),
    ],
)
def test_a_key_that_occurs_twice_is_refused(tmp_path: Path, text: str, line: int, key: str) -> None:
    with pytest.raises(UsageError, match=f"at line {line}: the key '{key}' occurs twice"):
        load_spec(write(tmp_path, text))


def test_a_merged_key_may_be_overridden(tmp_path: Path) -> None:
    merged = (
        "variants:\n  fp16: &base {prefix_cache: true}\n  b: {<<: *base, prefix_cache: false}\n"
    )
    spec = load_spec(write(tmp_path, yaml.safe_dump(MINIMAL) + merged))
    assert [variant.prefix_cache for variant in spec.variants.values()] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: 2026-13-01", "month must be in 1..12"),
        ("name: !!timestamp x", "not valid YAML"),
        ("name: " + "9" * 5000, "4300 digits"),
        ("name: &a [*a]", "more than 100,000 values"),
        ("name: a\n---\nname: b", "2 documents"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_one_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_spec(write(tmp_path, text))
    if text.startswith("name: ") and "---" not in text:
        with pytest.raises(UsageError, match=r"--set name: the value is not YAML"):
            load_spec(write(tmp_path, yaml.safe_dump(MINIMAL)), [f"name={text[6:]}"])


@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "{a: " * 3000])
def test_deep_nesting_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        load_spec(write(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"hardware": {"price_usd_per_hour": float("inf")}}, "finite"),
        ({"objective": {"ttft_ms": [float("nan")]}}, "finite"),
        ({"load": {"concurrency": [10**12]}}, "must be 65,535 or less"),
        ({"load": {"trials": 10**9}}, "must be 1,000 or less"),
        (
            {"objective": {"ttft_ms": 500}},
            "objective.ttft_ms: must be a list, as in [500] (got 500)",
        ),
        ({"load": {"concurrency": []}}, "load.concurrency: needs 1 or more values (got [])"),
        ({"load": {"confirm": "perhaps"}}, "load.confirm: must be true or false (got 'perhaps')"),
        ({"objective": {"tpot_ms": "fast"}}, "objective.tpot_ms: must be a number (got 'fast')"),
        ({"quality": 4}, "quality: must be keys with their values (got 4)"),
        (
            {"variants": {"a": {"args": {key: list(range(300)) for key in "xyz"}}}},
            "the lists make 27000000 variants, more than 500",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_our_words(
    change: dict[str, object], word: str
) -> None:
    assert word in told(change)


def test_a_section_that_contradicts_itself_is_not_printed_whole() -> None:
    message = told({"objective": {"recommend_ttft_ms": 300}})
    assert message == ("objective: recommend_ttft_ms must be one of ttft_ms [200.0, 500.0, 1000.0]")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"quality": {"next_schemes": ["W8A8"]}},
            "quality.next_schemes is gone; remove the key: preset: schemes measures every scheme",
        ),
        (
            {"load": {"repeat_baseline": True}},
            "load.repeat_baseline is gone; remove the key: every configuration is started "
            "load.trials times, which shows the noise",
        ),
        (
            {"engine": {"program": "llama-server"}},
            "engine.program is gone with llama.cpp; remove the key: a server that you start "
            "yourself is measured with engine: {name: openai, url: …}",
        ),
        (
            {"workload": {"pool": "prompts.jsonl"}},
            "workload.pool is gone; remove the key and set traffic: log.jsonl, your own request "
            "log",
        ),
    ],
)
def test_a_removed_key_is_refused_with_what_to_do(change: dict[str, object], sentence: str) -> None:
    assert told(change) == sentence


def test_the_gate_s_template_variables_are_the_model_s_and_its_own() -> None:
    spec = parse_spec(
        {
            **MINIMAL,
            "model": {**MINIMAL["model"], "chat_template_kwargs": {"mood": "!", "thinking": True}},
            "quality": {"chat_template_kwargs": {"thinking": False}},
        },
        base=Path("/base"),
    )
    assert spec.quality.chat_template_kwargs == {"mood": "!", "thinking": False}
    assert spec.model.variables == (("mood", "!"), ("thinking", True))
    assert decode(Spec, spec.model_dump(mode="json")) == spec
