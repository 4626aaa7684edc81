"""What every engine that whet starts must do: come up, prove itself, fail in a sentence, end.

A new engine in the registry needs one line in ``MAKERS``; where it is not installed it is skipped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from whet.client import scrape
from whet.core.counters import GENERATED
from whet.core.errors import EngineLostError, EngineStartError, UsageError
from whet.core.provenance import find_device
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.spec import EngineSpec
from whet.engines import ENGINES, get_engine, get_profile
from whet.engines.probe import request
from whet.engines.sglang import find_installed as find_sglang
from whet.engines.vllm import find_installed
from whet.levers import judge_start

pytestmark = [pytest.mark.e2e, pytest.mark.full]
ARGS = (("max_model_len", 256), ("max_num_seqs", 4))
STARTED = [name for name in ENGINES if name != "openai"]  # attach only


def make_vllm(folder: Path) -> Variant:
    from tests.engines.tiny import write_pair, write_w4a16

    target, _ = write_pair(folder)
    path = write_w4a16(target, folder / "w4a16")
    return variant("W4A16", path, args=(*ARGS, ("enforce_eager", True)))


def make_sglang(folder: Path) -> Variant:
    from tests.engines.tiny import write_pair

    target, _ = write_pair(folder)
    return variant("16bit", target, args=(*ARGS, ("mem_fraction_static", 0.2)))


MAKERS: dict[str, Callable[[Path], Variant]] = {
    "vllm": make_vllm,
    "sglang": make_sglang,
}


def variant(scheme: str, path: Path, *, args: tuple[tuple[str, object], ...]) -> Variant:
    return Variant(
        name="v",
        weights="recipe",
        scheme=scheme,
        model_path=str(path),
        speculation=None,
        prefix_cache=False,
        engine_args=args,  # type: ignore[arg-type]
        env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
    )


def why_not(name: str) -> str | None:
    if name == "vllm":
        return None if find_installed(sys.executable) else "vLLM is not installed"
    profile = get_profile(name)
    gpu = find_device().kind == "cuda"
    there = find_sglang(sys.executable)
    own = profile.installation
    return own.missing(sys.executable) if there is None else own.problem(there, gpu=gpu)


@pytest.fixture(scope="module", params=STARTED)
def resolved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    name = request.param
    if (reason := why_not(name)) is not None:
        pytest.skip(reason)
    engine = get_engine(name)
    made = engine.resolve(MAKERS[name](tmp_path_factory.mktemp(name)), EngineSpec(name=name))
    assert engine.unsupported(made) is None
    return made


def test_every_started_engine_has_a_maker() -> None:
    assert sorted(MAKERS) == sorted(STARTED)


def test_it_comes_up_proves_itself_counts_and_ends(
    resolved: ResolvedEngine, tmp_path: Path
) -> None:
    engine, profile = get_engine(resolved.engine), get_profile(resolved.engine)
    with engine.serve(resolved, log=tmp_path / "log.txt") as server:
        assert server.start.pid is not None
        tree = [psutil.Process(server.start.pid)]
        tree += tree[0].children(recursive=True)
        assert server.model_name in profile.read_declared(server.base_url).models
        assert (server.memory_bytes() or 0) > 10**6
        facts = profile.read_log(server.log_text())
        declared = profile.read_declared(server.base_url)
        assert (facts.version or declared.version) == resolved.engine_version
        verdicts = judge_start(resolved, facts, declared)
        weights, *_ = [each for each in verdicts if each.claim.kind == "weights"]
        assert weights.outcome == "proved", weights
        settings, *_ = [each for each in verdicts if each.claim.kind == "settings"]
        assert settings.outcome == "proved", settings
        names = dict(profile.counters_of(resolved.variant))
        before = scrape(server.base_url, names=names).get(GENERATED)
        body = {"model": server.model_name, "prompt": [5, 6, 7], "max_tokens": 5, "temperature": 0}
        status, text = request(
            server.base_url, "/v1/completions", body=body | {"ignore_eos": True}, timeout_s=60
        )
        assert status == 200, text
        assert (
            json.loads(text)["usage"] | {"prompt_tokens": 3, "completion_tokens": 5}
            == (json.loads(text)["usage"])
        )
        after = scrape(server.base_url, names=names).get(GENERATED)
        assert (after or 0) - (before or 0) == 5
    assert not [each for each in tree if each.is_running()]


def test_weights_that_are_not_there_are_a_sentence(
    resolved: ResolvedEngine, tmp_path: Path
) -> None:
    path = resolved.variant.model_path
    argv = tuple(word.replace(path, str(tmp_path / "nothing")) for word in resolved.argv)
    with (
        pytest.raises(EngineStartError) as caught,
        get_engine(resolved.engine).serve(replace(resolved, argv=argv), log=tmp_path / "log.txt"),
    ):
        pass
    assert "ended before it was ready: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_dies_is_noticed(resolved: ResolvedEngine, tmp_path: Path) -> None:
    with get_engine(resolved.engine).serve(resolved, log=tmp_path / "log.txt") as server:
        server.ensure_alive()
        assert server.start.pid is not None
        process = psutil.Process(server.start.pid)
        process.kill()
        process.wait(10)
        for _ in range(50):
            try:
                server.ensure_alive()
            except EngineLostError:
                return
            time.sleep(0.2)
        pytest.fail("nobody noticed that the server ended")


def test_an_unknown_flag_is_named_with_the_nearest(resolved: ResolvedEngine) -> None:
    args = (*resolved.variant.engine_args, ("max_num_batched_token", 256))
    wrong = replace(resolved.variant, engine_args=args)
    with pytest.raises(UsageError, match=r"has no flag 'max_num_batched_token'"):
        get_engine(resolved.engine).resolve(wrong, EngineSpec(name=resolved.engine))
