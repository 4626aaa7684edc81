"""llama-server's command line, its log, pages and faults, on recordings of build 1 of 0.5.0-dev."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.engines.conftest import make_variant
from whet.client.counters import parse_counters
from whet.client.simple import HttpError
from whet.core.counters import DRAFTS, GENERATED
from whet.core.errors import EngineStartError, UsageError
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.records.evidence import Verdict
from whet.core.spec import EngineSpec
from whet.engines import get_engine, get_profile
from whet.engines.failures import diagnose
from whet.engines.llamacpp.pages import COUNTERS, read_declared
from whet.engines.vllm.limits import limitation
from whet.levers import judge_start

RECORDED = Path(__file__).parent / "recorded"
PROFILE = get_profile("llamacpp")
HELP = """-t, --threads N
-b, --batch-size N
--mlock
-fa, --flash-attn [on|off|auto]
--mmap, --no-mmap
--cache-prompt, --no-cache-prompt
"""
PROGRAM = f"""#!/bin/sh
case "$1" in
  --version) echo "version: 0.5.0-dev (build 1, commit python0_3_36)" ;;
  --help) cat <<'END'
{HELP}
END
esac
"""
ARGS = (("max_model_len", 1024), ("max_num_seqs", 4))


def recorded(name: str) -> str:
    return (RECORDED / f"llamacpp_{name}").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(PROGRAM)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def gguf(**changes: object) -> Variant:
    usual: dict[str, object] = {"name": "q4", "weights": "q4", "scheme": "Q4_K_M"}
    return make_variant(
        **{**usual, "model_path": "/checkpoints/q4.gguf", "engine_args": ARGS, **changes}
    )


def resolve(program: Path, **changes: object) -> ResolvedEngine:
    spec = EngineSpec(name="llamacpp", program=program)
    return get_engine("llamacpp").resolve(gguf(**changes), spec)


def after(resolved: ResolvedEngine, word: str) -> str:
    return resolved.argv[resolved.argv.index(word) + 1]


def test_a_variant_becomes_the_command_line(program: Path) -> None:
    made = resolve(program)
    assert made.engine_version == "b1 (python0_3_36)"
    assert made.argv[0] == str(program)
    assert after(made, "--model") == "/checkpoints/q4.gguf"
    assert (after(made, "--parallel"), after(made, "--ctx-size")) == ("4", "4096")
    assert after(made, "--port") == "{port}"
    assert {"--metrics", "--no-cache-prompt", "--no-kv-unified"} <= set(made.argv)
    assert made.serve_line.endswith(" ".join(made.argv[-4:]))
    assert "--cache-prompt" in resolve(program, prefix_cache=True).argv


def test_without_a_length_all_slots_share_the_models_context(program: Path) -> None:
    made = resolve(program, engine_args=())
    assert (after(made, "--parallel"), after(made, "--ctx-size")) == ("8", "0")
    assert "--kv-unified" in made.argv


def test_plain_flags_go_to_the_server_as_they_are(program: Path) -> None:
    args = (*ARGS, ("threads", 1), ("mlock", True), ("mmap", False), ("max_num_batched_tokens", 64))
    words = resolve(program, engine_args=args).argv
    assert words[-6:] == ("--threads", "1", "--mlock", "--no-mmap", "--batch-size", "64")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((("thread", 1),), "llama-server has no flag 'thread'; did you mean 'threads'?"),
        ((("port", 1),), "engine flag 'port' cannot be set here; set nothing: a free port"),
        ((("mlock", False),), "engine flag 'mlock' cannot be switched off"),
        ((("max_model_len", 1152),), "is a multiple of 256; set max_model_len to 1280"),
    ],
)
def test_flags_that_cannot_be_set(
    program: Path, args: tuple[tuple[str, object], ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(program, engine_args=args)
    assert message in str(caught.value)


def test_drafts_are_named_in_llama_servers_words(program: Path) -> None:
    draft = Speculation(method="draft_model", num_tokens=3, draft_path="/checkpoints/draft.gguf")
    made = resolve(program, speculation=draft)
    assert after(made, "--spec-type") == "draft-simple"
    assert after(made, "--spec-draft-n-max") == "3"
    assert after(made, "--spec-draft-model") == "/checkpoints/draft.gguf"
    ngram = Speculation(method="ngram", num_tokens=4, draft_path=None)
    words = resolve(program, speculation=ngram)
    assert after(words, "--spec-ngram-simple-size-m") == "4"
    assert after(words, "--spec-ngram-simple-size-n") == "4"  # a longer match drafts nothing


def test_what_llama_server_does_not_serve(program: Path, tmp_path: Path) -> None:
    engine = get_engine("llamacpp")
    assert engine.unsupported(resolve(program)) is None
    assert engine.unsupported(resolve(program, scheme="Q6_K", model_path="/m/x.gguf")) is None
    refused = [
        ({"scheme": "W4A16", "model_path": "/m"}, "these weights are W4A16; make a file with"),
        ({"loras": (("a", "/a"),)}, "adapters on vLLM only"),
        (
            {"speculation": Speculation(method="eagle3", num_tokens=2, draft_path="/h")},
            "needs vLLM",
        ),
        (
            {
                "speculation": Speculation(
                    method="draft_model", num_tokens=2, draft_path=str(tmp_path)
                )
            },
            "drafts with a GGUF file",
        ),
    ]
    for change, reason in refused:
        assert reason in str(engine.unsupported(resolve(program, **change)))


def test_vllm_refuses_gguf_and_names_the_engine_that_takes_it(program: Path) -> None:
    from tests.engines.test_vllm import CPU

    reason = limitation(replace(resolve(program), engine="vllm"), CPU, gpu=False)
    assert reason is not None
    assert "set engine: llamacpp for this variant" in reason


def test_a_missing_program_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("WHET_LLAMA_CPP", raising=False)
    engine = get_engine("llamacpp")
    with pytest.raises(EngineStartError, match=r"scripts/build_llamacpp\.py"):
        engine.version(EngineSpec(name="llamacpp"))
    with pytest.raises(EngineStartError, match=r"no program at .*nowhere; correct program"):
        engine.version(EngineSpec(name="llamacpp", program=tmp_path / "nowhere"))
    (tmp_path / "echo").write_text("#!/bin/sh\n")
    (tmp_path / "echo").chmod(0o755)
    with pytest.raises(EngineStartError, match="does not say its version"):
        engine.version(EngineSpec(name="llamacpp", program=tmp_path / "echo"))


def test_a_log_gives_tensors_by_type_context_and_slots() -> None:
    facts = PROFILE.read_log(recorded("q4.log"))
    assert facts.version == "b1 (python0_3_36)"
    assert facts.weight_kernels == (
        "q5_0 for 34 tensors",
        "q8_0 for 3 tensors",
        "q4_K for 4 tensors",
        "q6_K for 2 tensors",
    )
    assert (facts.quantized_layers, facts.unquantized_layers) == (43, 0)
    assert facts.kv_cache_tokens == 1024 * 4
    assert facts.kv_memory_gib == pytest.approx(12 / 1024)
    assert facts.max_model_len == 1024
    assert dict(facts.settings) == {"max_num_seqs": "4", "threads": "2"}
    assert facts.attention_backend == "flash attention"
    assert facts.notices == ()


def test_an_empty_log_says_nothing() -> None:
    facts = PROFILE.read_log("")
    assert (facts.version, facts.quantized_layers, facts.weight_kernels) == (None, None, ())


def weights(program: Path, log: str, scheme: str = "Q4_K_M") -> Verdict:
    made = resolve(program, scheme=scheme)
    verdict, *_ = judge_start(made, PROFILE.read_log(log))
    assert verdict.claim.kind == "weights"
    return verdict


def test_tensors_of_the_schemes_types_prove_the_weights(program: Path) -> None:
    verdict = weights(program, recorded("q4.log"))
    assert verdict.outcome == "proved"
    assert "q5_0 for 34 tensors" in verdict.observed  # the fallback is named, not hidden
    assert "43 tensors of quantized types, 0 matrices in 16 bits" in verdict.observed


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("- type q5_0:   34", "- type bf16:   34", "unproved"),
        ("- type", "- kind", "unproved"),
        ("- type q", "- type iq", "unproved"),
    ],
    ids=["most are 16 bit", "no types", "another scheme's"],
)
def test_other_tensors_do_not(program: Path, old: str, new: str, outcome: str) -> None:
    assert weights(program, recorded("q4.log").replace(old, new)).outcome == outcome


def test_a_file_of_16_bits_contradicts_a_scheme(program: Path) -> None:
    log = recorded("q4.log")
    for name in ("q5_0", "q8_0", "q4_K", "q6_K"):
        log = log.replace(f"- type {name}", "- type bf16")
    assert weights(program, log).outcome == "contradicted"
    assert weights(program, log, scheme="16bit").outcome == "proved"


def test_counters_are_read_under_the_common_names() -> None:
    values = dict(parse_counters(recorded("metrics_before.txt")))
    mapped = {COUNTERS.get(name, name): value for name, value in values.items()}
    assert mapped[GENERATED] == 5
    assert mapped[DRAFTS] == 0


def test_pages_give_slots_context_and_the_models_name() -> None:
    props = {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 4}
    pages = {"/props": props | {"build_info": "b1-x"}, "/v1/models": {"data": [{"id": "q4"}]}}

    def answer(_url: str, path: str, **_options: object) -> str:
        if path not in pages:
            raise HttpError("not found", status=404)
        return json.dumps(pages[path])

    with patch("whet.engines.probe.get_text", answer):
        declared = read_declared("http://127.0.0.1:1")
        pages.clear()
        silent = read_declared("http://127.0.0.1:1")
    assert declared.models == ("q4",)
    assert (declared.setting("max_num_seqs"), declared.setting("max_model_len")) == ("4", "1024")
    assert (silent.models, silent.config) == ((), ())


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("missing", "no_file", "cannot open its GGUF file; correct weights"),
        ("notgguf", "not_gguf", "not a whole GGUF file"),
        ("cut", "truncated", "cut short"),
        ("oom", "out_of_memory", "lower max_model_len or max_num_seqs"),
        ("port", "port", "run again"),
        ("flag", "flag", "invalid argument: --frobnicate"),
    ],
)
def test_a_failed_start_is_one_sentence_with_the_fix(name: str, kind: str, words: str) -> None:
    failure = diagnose(recorded(f"{name}.log"), PROFILE.failures.signs)
    assert failure is not None
    assert failure.kind == kind
    assert words in failure.sentence
