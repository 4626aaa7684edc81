"""A workload has the make-up that it states, and the hash says when two are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.load.prompts_factory import NO_SYSTEM, write_pool, write_tokenizer
from whet.checkpoint.encoder import load_encoder
from whet.core.errors import CheckpointError, StorageError, UsageError
from whet.core.load import Load
from whet.core.records.load import PlannedRequest
from whet.core.spec import WorkloadSpec
from whet.load import Draw, Workload, build_workload
from whet.load.plan import to_call

DRAW = Draw(requests=40, load=Load.at(4), trial=0, block_size=16)
SPEC = WorkloadSpec(min_output_tokens=1, max_output_tokens=10_000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("prompts")
    return write_pool(folder / "pool.jsonl"), write_tokenizer(folder / "tokenizer")


def build(files: tuple[Path, Path], spec: WorkloadSpec = SPEC, draw: Draw = DRAW) -> Workload:
    return build_workload(*files, spec, draw=draw).workload


def warm_up(files: tuple[Path, Path], draw: Draw, count: int) -> tuple[PlannedRequest, ...]:
    return build_workload(*files, SPEC, draw=replace(draw, warmup=count)).warmup


def test_the_same_arguments_give_the_same_traffic(files: tuple[Path, Path]) -> None:
    assert build(files) == build(files)


@pytest.mark.parametrize(
    "draw",
    [replace(DRAW, trial=1), replace(DRAW, load=Load.at(8)), replace(DRAW, requests=41)],
    ids=["trial", "load", "requests"],
)
def test_another_draw_has_another_hash(files: tuple[Path, Path], draw: Draw) -> None:
    assert build(files, draw=draw).facts.sha256 != build(files).facts.sha256


def test_no_prompt_comes_twice_on_one_server(files: tuple[Path, Path]) -> None:
    cells = [replace(DRAW, trial=t, load=Load.at(b)) for t in range(3) for b in (1, 4)]
    prompts = [r.prompt_token_ids for draw in cells for r in build(files, draw=draw).requests]
    prompts += [r.prompt_token_ids for d in cells for r in warm_up(files, d, 40)]
    assert len(set(prompts)) == len(prompts) == 6 * 80


def test_requests_of_one_user_turn_have_one_source_in_every_trial(files: tuple[Path, Path]) -> None:
    encoder, questions = load_encoder(files[1]), set[tuple[int, str]]()
    for trial in range(3):
        workload = build(files, draw=replace(DRAW, trial=trial))
        for source, request in zip(workload.facts.sources, workload.requests, strict=True):
            text = encoder.decode(np.asarray(request.prompt_token_ids))
            questions.add((source, text[text.index("question") :]))
    assert len(questions) == len({source for source, _ in questions}) == 8


def test_shares_are_exact(files: tuple[Path, Path]) -> None:
    facts = build(files, WorkloadSpec(shared_prefix_share=0.25, long_system_share=0.8)).facts
    assert (facts.shared_prefix_share, facts.long_system_share) == (0.25, 0.8)
    everyone = build(files, WorkloadSpec(shared_prefix_share=1.0)).facts
    assert (everyone.shared_prefix_share, everyone.shared_prefixes) == (1.0, 8)


def test_long_prompts_have_their_share_and_length(files: tuple[Path, Path]) -> None:
    spec = SPEC.model_copy(update={"long_prompts": 0.1, "long_prompt_tokens": 500})
    requests = build(files, spec).requests
    longs = [r for r in requests if len(r.prompt_token_ids) == 500]
    assert [r.index for r in longs] == [5, 15, 25, 35]
    assert len({r.prompt_token_ids[:64] for r in longs}) == 4
    assert {r.prefix_id for r in longs} == {None}
    assert build(files, SPEC).requests[0] == requests[0]


def test_lengths_are_token_exact(files: tuple[Path, Path]) -> None:
    """Counted by hand: 4 special tokens and the user's end, a ticket line of 18, a turn of 40."""
    sizes = {
        request.prefix_id.split("-")[0]: len(request.prompt_token_ids)
        for request in build(files).requests
        if request.prefix_id is not None
    }
    assert sizes == {"short": 64 + 5 + 18 + 40, "long": 256 + 5 + 18 + 40}


def test_shared_tokens_are_whole_blocks_of_the_common_beginning(files: tuple[Path, Path]) -> None:
    """<|system|>, the prompt, <|end|>, <|user|> and 'Ticket ' are common: 64 or 256 and 10 more."""
    for request in build(files).requests:
        expected = {"short": 64, "long": 256}
        if request.prefix_id is None:
            assert request.shared_tokens == 0
        else:
            assert request.shared_tokens == expected[request.prefix_id.split("-")[0]]


def test_the_expected_hit_rate_is_what_a_cache_finds(files: tuple[Path, Path]) -> None:
    """A cache of whole blocks, simulated request by request after the warm-up, agrees."""
    workload = build(files)
    cache: set[tuple[int, ...]] = set()
    for request in warm_up(files, DRAW, 20):
        cache.update(prefixes(request))
    hits = total = 0
    for request in workload.requests:
        hits += max((len(p) for p in prefixes(request) if p in cache), default=0)
        total += len(request.prompt_token_ids)
        cache.update(prefixes(request))
    assert workload.facts.expected_hit_rate == pytest.approx(hits / total)
    assert 0.4 < hits / total < 0.7


def prefixes(request: PlannedRequest) -> Iterator[tuple[int, ...]]:
    ids = request.prompt_token_ids
    for end in range(16, len(ids), 16):
        yield ids[:end]


def test_nothing_is_shared_where_nothing_should_be(files: tuple[Path, Path]) -> None:
    facts = build(files, WorkloadSpec(shared_prefix_share=0.0)).facts
    assert (facts.expected_hit_rate, facts.shared_prefixes) == (0.0, 0)


def test_output_follows_the_ratio_within_its_bounds(files: tuple[Path, Path]) -> None:
    spec = WorkloadSpec(input_output_ratio=4, min_output_tokens=35, max_output_tokens=70)
    got = {len(r.prompt_token_ids): r.max_tokens for r in build(files, spec).requests}
    assert got[127] == 35  # 31.75 would be too few
    assert got[319] == 70  # 79.75 too many
    assert got[148] == 37  # a unique one, longer by its reference line of 21


def test_a_temperature_is_sent_and_makes_another_workload(files: tuple[Path, Path]) -> None:
    greedy, sampled = (build(files, WorkloadSpec(temperature=each)) for each in (0.0, 0.7))
    bodies = [to_call(each.requests[0]).body(model="m", stream=True) for each in (greedy, sampled)]
    assert [body.pop("temperature") for body in bodies] == [0.0, 0.7]
    assert bodies[0] == bodies[1]
    assert greedy.facts.sha256 != sampled.facts.sha256


def test_the_warm_up_holds_every_shared_prefix(files: tuple[Path, Path]) -> None:
    for asked, sent in ((20, 20), (3, 8), (0, 0)):
        warmup = warm_up(files, DRAW, asked)
        assert len(warmup) == sent
        assert len({r.prefix_id for r in warmup} - {None}) == (8 if sent else 0)


def test_more_prefixes_than_texts_are_still_different(tmp_path: Path) -> None:
    files = (write_pool(tmp_path / "p", shorts=1, longs=1), write_tokenizer(tmp_path / "t"))
    spec = WorkloadSpec(shared_prefix_share=1.0, shared_prefixes=3)
    starts = {r.prefix_id: r.prompt_token_ids[:40] for r in build(files, spec).requests}
    assert len(starts) == len(set(starts.values())) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no system_short in it"),
        ('{"kind": "user", "text": "a"}\n', "no system_short in it"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_texts_that_were_emptied_or_damaged(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pool").write_text(text)
    with pytest.raises(StorageError, match=said):
        build((tmp_path / "pool", write_tokenizer(tmp_path / "tokenizer")))


def test_a_long_prompt_is_cut_in_the_user_turn(files: tuple[Path, Path]) -> None:
    spec = WorkloadSpec(max_input_tokens=300, shared_prefix_share=1.0)
    lengths = {len(r.prompt_token_ids) for r in build(files, spec).requests}
    assert max(lengths) <= 300
    assert 127 in lengths  # short ones are as they were
    with pytest.raises(UsageError, match="max_input_tokens is 200"):
        build(files, WorkloadSpec(max_input_tokens=200))


def test_a_tokenizer_without_a_template_or_a_system_role_still_serves(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    plain = build((pool, write_tokenizer(tmp_path / "plain", template=None)))
    assert {len(r.prompt_token_ids) for r in plain.requests if r.prefix_id} == {124, 316}
    template = NO_SYSTEM + "<|user|>{{ messages[0].content }}"
    merged = build((pool, write_tokenizer(tmp_path / "merged", template=template)))
    assert {len(r.prompt_token_ids) for r in merged.requests if r.prefix_id} == {125, 317}


def test_missing_texts_or_a_missing_tokenizer_are_one_sentence(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        build((tmp_path / "none", files[1]))
    with pytest.raises(CheckpointError, match="tokenizer"):
        build((files[0], tmp_path / "none"))


def test_variables_reach_the_template_and_one_that_lacks_some_is_a_usage_error(
    tmp_path: Path,
) -> None:
    pool = write_pool(tmp_path / "pool")
    template = "{% if mood %}!!{% endif %}" + NO_SYSTEM + "<|user|>{{ messages[0].content }}"
    tokenizer = write_tokenizer(tmp_path / "mood", template=template)
    plain = build((pool, tokenizer))
    moody = build_workload(pool, tokenizer, SPEC, draw=DRAW, variables=(("mood", True),)).workload
    lengths = [[len(each.prompt_token_ids) for each in made.requests] for made in (plain, moody)]
    assert lengths[1] == [length + 2 for length in lengths[0]]
    needy = write_tokenizer(tmp_path / "needy", template="{{ functions.x }}")
    with pytest.raises(UsageError, match=r"'functions' is undefined\); set model.chat_template_kw"):
        build((pool, needy))
