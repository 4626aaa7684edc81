"""Stored real runs, unpacked once, and copies to change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ci.planted import CPU_DEMO, H200, unpack


@pytest.fixture(scope="session")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(H200, tmp_path_factory.mktemp("h200"))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(CPU_DEMO, tmp_path_factory.mktemp("demo"))


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda root: Path(shutil.copytree(root, tmp_path / "candidate"))
