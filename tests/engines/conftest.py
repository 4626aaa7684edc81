"""A resolved engine whose process is the scripted one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import records
from whet.core.records.engine import ResolvedEngine, Variant

MARK = f"whet-test-{os.getpid()}"
FAKE = Path(__file__).with_name("fake_engine.py")
Resolve = Callable[..., ResolvedEngine]


def make_variant(**changes: object) -> Variant:
    awq = {"name": "awq", "weights": "awq", "scheme": "W4A16", "model_path": "/checkpoints/awq"}
    return records.variant(**{**awq, **changes})


@pytest.fixture
def resolve() -> Resolve:
    """``resolve(mode, ready_timeout_s=…)``: the scripted engine in that mode."""

    def make(mode: str, *, ready_timeout_s: float = 20.0) -> ResolvedEngine:
        return records.resolved(
            make_variant(),
            engine_version="9.9",
            served_model_name="fake",
            argv=(sys.executable, str(FAKE), mode, "{port}", MARK),
            serve_line="fake serve",
            ready_timeout_s=ready_timeout_s,
        )

    return make
