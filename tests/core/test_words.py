"""Names, units and secrets."""

from pathlib import Path

import pytest

from whet.core.errors import UsageError
from whet.core.names import did_you_mean, inside, require_name
from whet.core.redact import public_env, redact
from whet.core.units import human_bytes, human_duration


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "../x", ".hidden", "a..b", "x" * 81, "a b", "a\n"]
)
def test_an_unsafe_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        require_name(name, "the run's name")


def test_the_variants_of_the_design_are_safe_names() -> None:
    for name in ("fp16", "awq+spec+cache", "fp16.again"):
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
