"""What a server names at each position: from its JSON to arrays, a file and back."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.quality.model_server import Body, Reply, likelihoods, model_server
from whet.core.errors import StorageError, UsageError
from whet.core.spec import parse_spec
from whet.quality import likelihood
from whet.quality.asking import ModelEndpoint, ask_and_read
from whet.quality.distances import (
    TopDocument,
    TopLogprobs,
    pack,
    read_top_logprobs,
    write_top_logprobs,
)
from whet.quality.likelihood import Likelihood, measure_likelihood

DOCUMENTS = [(5, 7, 9), (5, 8)]
LIKELIEST = {1: -0.5, 2: -1.5, 3: -2.5}


def names(body: Body, *, lack: int = 0) -> Reply:
    """vLLM's form: the prompt's own token first, then the likeliest, each token once."""
    entries: list[Any] = [None]
    for token in body["prompt"][1:]:
        likeliest = list(LIKELIEST.items())[: max(0, body["prompt_logprobs"] - lack)]
        found = {str(token): {"logprob": -4.0, "rank": 40}}
        found |= {str(one): {"logprob": p, "rank": i} for i, (one, p) in enumerate(likeliest, 1)}
        entries.append(found)
    return 200, {"choices": [{"text": "x", "prompt_logprobs": entries}]}


def measure(answer: Any, top_k: int) -> tuple[Likelihood, list[Body]]:
    with model_server(answer) as (url, asked):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=2)
        found = measure_likelihood(endpoint, DOCUMENTS, vocab_size=99, top_k=top_k)
    return found, asked


def test_the_likeliest_come_first_and_the_prompts_own_last() -> None:
    found, asked = measure(names, 2)
    assert {body["prompt_logprobs"] for body in asked} == {2}
    assert found.nll == ((8.0, 2), (4.0, 1))
    assert found.top[0].ids.tolist() == [[1, 2, 7], [1, 2, 9]]
    assert found.top[0].logprobs.tolist() == [[-0.5, -1.5, -4.0]] * 2
    assert (found.top[0].ids.dtype, found.top[0].logprobs.dtype) == (np.int32, np.float32)
    assert found.top_missing is None


def test_an_own_token_among_the_likeliest_leaves_the_last_place_empty() -> None:
    found = pack([[(4, -3.0), (6, -0.1)]], 2)
    assert found.ids.tolist() == [[6, 4, -1]]
    assert np.isnan(found.logprobs[0, 2])


def test_without_likeliest_tokens_only_the_likelihood_is_kept() -> None:
    found, asked = measure(names, 0)
    assert {body["prompt_logprobs"] for body in asked} == {0}
    assert (found.nll, found.top, found.top_missing) == (((8.0, 2), (4.0, 1)), (), None)


def test_a_server_that_names_too_few_has_no_distances_but_its_perplexity() -> None:
    found, _ = measure(lambda body: names(body, lack=2), 3)
    assert found.nll == ((8.0, 2), (4.0, 1))
    assert found.top == ()
    assert found.top_missing is not None
    assert "fewer likeliest tokens" in found.top_missing


def test_a_server_that_refuses_so_many_is_asked_for_the_own_token_alone() -> None:
    def limited(body: Body) -> Reply:
        if body["prompt_logprobs"] > 2:
            return 400, {"error": "Requested prompt logprobs of 3, greater than max allowed: 2"}
        return names(body)

    found, _ = measure(limited, 3)
    assert found.nll == ((8.0, 2), (4.0, 1))
    assert found.top == ()
    assert found.top_missing is not None
    assert "--max-logprobs" in found.top_missing


def test_a_server_that_does_not_answer_at_all_is_missing_and_not_refused() -> None:
    found, _ = measure(lambda body: (400, {"error": "no"}), 3)
    assert (found.nll, found.top, found.top_missing) == ((), (), None)
    assert found.missing is not None


def test_nan_beside_the_own_token_is_a_finding() -> None:
    def broken(body: Body) -> Reply:
        status, reply = names(body)
        reply["choices"][0]["prompt_logprobs"][1]["1"]["logprob"] = None
        return status, reply

    found, _ = measure(broken, 2)
    assert found.broken is not None
    assert "not a number" in found.broken


def test_a_likeliest_token_of_probability_0_is_no_finding() -> None:
    def masked(body: Body) -> Reply:
        status, reply = names(body)
        reply["choices"][0]["prompt_logprobs"][1]["2"]["logprob"] = -math.inf
        return status, reply

    found, _ = measure(masked, 2)
    assert (found.broken, found.missing) == (None, None)
    assert found.top[0].ids[0].tolist() == [1, 7, 2]
    assert np.isfinite(found.top[0].logprobs).all()


def test_a_vocabulary_smaller_than_the_wish_is_named_whole() -> None:
    with model_server(names) as (url, asked):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=2)
        found = measure_likelihood(endpoint, [(5, 7)], vocab_size=2, top_k=5)
    assert {body["prompt_logprobs"] for body in asked} == {2}
    assert found.top[0].ids.shape == (1, 3)


def test_a_reply_is_read_before_the_next_step_is_asked() -> None:
    seen = []
    with model_server(lambda body: likelihoods(body, lambda *_: -1.0)) as (url, asked):

        def read(index: int, reply: dict[str, Any]) -> int:
            seen.append(len(asked))
            return index

        endpoint = ModelEndpoint(url=url, model="m", concurrency=2)
        found = ask_and_read(endpoint, [{"prompt": [1, 2]}] * 5, read, step=2)
    assert found == [0, 1, 2, 3, 4]
    assert seen == [2, 2, 4, 4, 5]


def test_long_replies_are_held_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three tokens, four named at each, 512 bytes a name: two such replies fill 12 KiB.
    monkeypatch.setattr(likelihood, "_REPLY_BUDGET_BYTES", 12 * 1024)
    steps = []

    def spy(*args: Any, **options: Any) -> Any:
        steps.append(options["step"])
        return ask_and_read(*args, **options)

    monkeypatch.setattr(likelihood, "ask_and_read", spy)
    found, _ = measure(names, 3)
    assert steps == [2]
    assert len(found.top) == 2


def stored(sha: str = "abc") -> TopLogprobs:
    documents = [
        pack([[(1, -0.25), (4, -2.0), (9, -3.0)], [(2, -0.5), (3, -1.0)]], 2),
        pack([[(8, -0.125), (1, -4.0)]], 2),
    ]
    return TopLogprobs(top_k=2, data_sha256=sha, documents=documents)


def _equal(one: TopDocument, other: TopDocument) -> bool:
    return (
        np.array_equal(one.ids, other.ids)
        and np.array_equal(one.logprobs, other.logprobs, equal_nan=True)
        and one.logprobs.dtype == other.logprobs.dtype == np.float32
    )


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "quality" / "fp16.npz"
    write_top_logprobs(path, stored())
    found = read_top_logprobs(path, "abc")
    assert (found.top_k, found.data_sha256, len(found.documents)) == (2, "abc", 2)
    assert all(map(_equal, found.documents, stored().documents))
    assert _equal(found.documents[-1], stored().documents[-1])
    assert [entry.name for entry in path.parent.iterdir()] == ["fp16.npz"]


def test_a_file_of_other_data_is_refused(tmp_path: Path) -> None:
    write_top_logprobs(tmp_path / "top.npz", stored("other"))
    with pytest.raises(UsageError, match="other text, tasks or token ids; measure the baseline"):
        read_top_logprobs(tmp_path / "top.npz", "abc")


@pytest.mark.parametrize("keep", [0, 10, 200, -30])
def test_a_torn_file_is_said(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "top.npz"
    write_top_logprobs(path, stored())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StorageError, match="damaged"):
        read_top_logprobs(path, "abc")


def test_arrays_of_another_shape_are_said(tmp_path: Path) -> None:
    path = tmp_path / "top.npz"
    write_top_logprobs(path, stored())
    with np.load(path) as file:
        members = dict(file)
    np.savez(path, **{**members, "ids": members["ids"][:1]})
    with pytest.raises(StorageError, match="damaged"):
        read_top_logprobs(path, "abc")


def _spec(**quality: Any) -> Any:
    data = {"name": "x", "model": {"target": "t"}, "hardware": {"price_usd_per_hour": 1}}
    variants = {"fp16": {"weights": "16bit"}}
    return parse_spec({**data, "variants": variants, "quality": quality}, base=Path("/base"))


def test_more_than_vllm_names_by_default_is_refused_in_the_spec() -> None:
    assert _spec().quality.top_logprobs == 5
    assert [_spec(top_logprobs=k).quality.top_logprobs for k in (0, 20)] == [0, 20]
    with pytest.raises(UsageError, match=r"quality.top_logprobs: at most 20 .* lower it"):
        _spec(top_logprobs=21)
