"""Names, units and secrets."""

import json
from pathlib import Path

import pytest

from whet.core.errors import UsageError
from whet.core.names import did_you_mean, inside, require_name
from whet.core.redact import is_secret_name, public_env, redact, redact_json
from whet.core.units import human_bytes, human_duration


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "../x", ".hidden", "a..b", "x" * 81, "a b", "a\n"]
)
def test_an_unsafe_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        require_name(name, "the run's name")


def test_the_variants_of_the_design_are_safe_names() -> None:
    for name in ("fp16", "awq+draft+cache", "fp16.again"):
        assert require_name(name, "x") == name


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "out").symlink_to(tmp_path)
    with pytest.raises(UsageError):
        inside(tmp_path / "run", "out", "file")


def test_the_nearest_word() -> None:
    assert (
        did_you_mean("max_modle_len", ["max_model_len", "seed"])
        == "; did you mean 'max_model_len'?"
    )
    assert did_you_mean("zzz", ["max_model_len"]) == ""


def test_people_read_units() -> None:
    assert human_bytes(0) == "0 B"
    assert human_bytes(1536 * 1024**2) == "1.5 GiB"
    assert human_duration(8.24) == "8.2 s"
    assert human_duration(185) == "3 min 05 s"
    assert human_duration(3720) == "1 h 02 min"


def test_secrets_go_by_value_and_by_form() -> None:
    env = {"HF_TOKEN": "s3cret-value", "OPENAI_API_KEY": "abcdef123", "PATH": "/bin"}
    text = redact(
        "token s3cret-value, key abcdef123, hf_ABCDEFGH1234, Bearer abc.def-12345", env=env
    )
    assert text == "token [redacted], key [redacted], [redacted], [redacted]"
    assert public_env(env) == {"PATH": "/bin"}
    assert redact("reach http://bob:p/w@host:1/v1, http://h/") == (
        "reach http://[redacted]@host:1/v1, http://h/"
    )


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("MY_DB_PASS", True),
        ("db_pwd", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("SSH_KEY", True),
        ("GOOGLE_CREDENTIALS", True),
        ("VLLM_API_KEY", True),
        ("NCCL_SECRET", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("VLLM_CPU_KVCACHE_SPACE", False),
        ("VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", False),
        ("VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD", False),
        ("VLLM_ENABLE_PREGRAD_PASSES", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("PWD", False),
    ],
)
def test_a_name_says_whether_its_value_is_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_only_strings_of_json_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DB_PASS", "123456")
    assert json.loads(redact_json('{"a": 123456, "b": ["is 123456"]}')) == {
        "a": 123456,
        "b": ["is [redacted]"],
    }
