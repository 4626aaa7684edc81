"""Attaching to a server that somebody else started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import FAKE, MARK, make_variant
from tests.engines.test_launch import wait_until
from whet.core.errors import EngineLostError, EngineStartError, UsageError
from whet.core.spec import EngineSpec
from whet.engines import get_engine
from whet.engines.probe import is_healthy
from whet.engines.process import free_port


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    port = free_port()
    mode = getattr(request, "param", "serve")
    with subprocess.Popen([sys.executable, str(FAKE), mode, str(port), MARK]) as process:
        address = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: is_healthy(address))
        yield address
        process.kill()


def test_attach_and_leave_it_running(url: str, tmp_path: Path) -> None:
    engine, spec = get_engine("openai"), EngineSpec(name="openai", url=f"{url}/v1/")
    resolved = engine.resolve(make_variant(), spec)
    assert (resolved.url, resolved.served_model_name) == (url, "fake")
    assert resolved.engine_version == "9.9"
    with engine.serve(resolved, log=tmp_path / "log") as server:
        assert server.start.pid is None
        assert server.memory_bytes() is None
        server.ensure_alive()
    assert is_healthy(url)


def test_a_server_that_goes_away_is_lost(url: str, tmp_path: Path) -> None:
    engine = get_engine("openai")
    resolved = engine.resolve(make_variant(), EngineSpec(name="openai", url=url))
    with engine.serve(resolved, log=tmp_path / "log") as server:
        server.base_url = f"http://127.0.0.1:{free_port()}"  # type: ignore[misc]
        with pytest.raises(EngineLostError):
            server.ensure_alive()


@pytest.mark.parametrize("url", ["sick", "empty"], indirect=True)
def test_health_is_not_enough_here_either(url: str, tmp_path: Path) -> None:
    engine = get_engine("openai")
    resolved = engine.resolve(make_variant(), EngineSpec(name="openai", url=url))
    with (
        pytest.raises(EngineStartError, match="cannot generate"),
        engine.serve(resolved, log=tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "said"),
    [(None, "engine.url"), ("somewhere:80", "http://"), ("http://a:b@host", "OPENAI_API_KEY")],
)
def test_an_address_that_cannot_be_used(address: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        get_engine("openai").resolve(make_variant(), EngineSpec(name="openai", url=address))


def test_nobody_at_home() -> None:
    spec = EngineSpec(name="openai", url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EngineStartError, match="nothing answers"):
        get_engine("openai").resolve(make_variant(), spec)
