"""What Prometheus reads from the watch, over HTTP and in its own text format."""

from contextlib import closing
from urllib.request import urlopen

import numpy as np
import pytest

from tests.watch.traffic import Deployment, Truth, simulated_references
from whet.client.counters import parse_counters
from whet.core.errors import UsageError
from whet.engines.process import free_port
from whet.watch.causes import CAUSES
from whet.watch.exporter import Exporter
from whet.watch.state import WatchState, advance


@pytest.fixture
def listen() -> str:
    return f"127.0.0.1:{free_port()}"


def page(listen: str) -> str:
    with urlopen(f"http://{listen}/metrics", timeout=5) as reply:
        text: str = reply.read().decode()
        return text


def test_the_page_has_every_cause_and_the_signals(listen: str) -> None:
    references, deployment = simulated_references(), Deployment(np.random.default_rng(0))
    state = WatchState(run="r", variant="v")
    with closing(Exporter(listen, 60.0)) as exporter:
        for period in range(3):
            truth = Truth(waiting=50.0) if period else Truth()
            done = advance(state, look := deployment.observe(period, truth), references)
            state = done.state
            exporter.show(look, done, dropped=0)
        text = page(listen)
    values = dict(parse_counters(text))
    assert values["whet_watch_last_period_timestamp_seconds"] == 120
    for cause in CAUSES:
        assert f'whet_watch_alarm{{cause="{cause.name}"}} 0.0' in text
    assert 'whet_watch_signal{signal="queue"}' in text


def test_an_ipv6_address_is_listened_on() -> None:
    listen = f"[::1]:{free_port()}"
    with closing(Exporter(listen, 60.0)):
        assert "whet_watch_period_seconds 60.0" in page(listen)


def test_an_alarm_is_shown_and_ends(listen: str) -> None:
    from dataclasses import replace

    references, deployment = simulated_references(), Deployment(np.random.default_rng(0))
    state, shown = WatchState(run="r", variant="v"), []
    with closing(Exporter(listen, 60.0)) as exporter:
        for period in range(7):
            look = deployment.observe(period, Truth())
            look = replace(look, version="9" if period < 3 else look.version)
            done = advance(state, look, references)
            state = done.state
            exporter.show(look, done, dropped=0)
            shown.append('whet_watch_alarm{cause="engine_version"} 1.0' in page(listen))
    assert shown == [False, True, True, True, True, False, False]


@pytest.mark.parametrize("listen", ["9464", "host:port", "127.0.0.1:99999", ":9464"])
def test_an_address_that_is_none(listen: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        Exporter(listen, 60.0)


def test_a_taken_port(listen: str) -> None:
    with closing(Exporter(listen, 60.0)), pytest.raises(UsageError, match="choose another port"):
        Exporter(listen, 60.0)
