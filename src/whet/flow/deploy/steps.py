"""The commands that start a bundle, and those that go back to the one before."""

from __future__ import annotations

from pathlib import Path

from whet.core.quote import shell_word
from whet.core.records.bundle import Bundle
from whet.deploy.target import get_target
from whet.flow.deploy.folder import PREVIOUS, SECRETS


def start_steps(bundle: Bundle, folder: Path) -> list[str]:
    """Return the commands that deploy ``folder``; the keys come first where .env is missing."""
    keys, example = (_word(folder / name) for name in (SECRETS, f"{SECRETS}.example"))
    steps = [] if (folder / SECRETS).exists() else [f"cp {example} {keys}  # then set the keys"]
    return [*steps, *(_filled(step, bundle, folder) for step in get_target(bundle.target).start)]


def monitoring_step(bundle: Bundle, folder: Path) -> str | None:
    """Return the command that starts Prometheus, Alertmanager and Grafana, if the bundle does."""
    step = get_target(bundle.target).monitoring
    return None if step is None else _filled(step, bundle, folder)


def rollback_step(previous: Bundle, folder: Path) -> str:
    """Return the command that deploys the bundle before."""
    return _filled(get_target(previous.target).rollback, previous, folder)


def _filled(step: str, bundle: Bundle, folder: Path) -> str:
    return step.format(
        folder=_word(folder),
        keys=_word(folder / SECRETS),
        previous=_word(folder / PREVIOUS),
        name=shell_word(bundle.name),
        namespace=shell_word(bundle.namespace or "default"),
    )


def _word(path: Path) -> str:
    return shell_word(str(path))
