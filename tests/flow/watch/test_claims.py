"""A fallback after a restart: the claims of the newest start in a log of several."""

from pathlib import Path

from tests.levers.builders import resolved
from tests.levers.recorded import text
from whet.flow.watch.watch import broken_claims

GOOD = text("h100_w4a16.log")
FALLBACK = GOOD.replace("Machete", "Conch")


def test_the_kernel_of_the_newest_start_counts(tmp_path: Path) -> None:
    log, engine = tmp_path / "engine.log", resolved(scheme="W4A16")
    for written, broken in (
        (GOOD, []),
        (GOOD + FALLBACK, ["weights"]),
        (FALLBACK + GOOD, []),
    ):
        log.write_text(written)
        assert list(broken_claims(log, engine)) == broken
    log.write_text(GOOD + FALLBACK)
    assert "ConchLinearKernel" in broken_claims(log, engine)["weights"]


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert broken_claims(tmp_path / "none.log", resolved()) == {}
