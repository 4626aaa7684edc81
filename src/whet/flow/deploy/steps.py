"""The commands that start a bundle, and those that go back to the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.core.quote import shell_word
from whet.core.records.bundle import Bundle
from whet.flow.deploy.folder import PREVIOUS, SECRETS

_ROUTER: Final = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"


def start_steps(bundle: Bundle, folder: Path) -> list[str]:
    """Shell commands that deploy ``folder``; the keys come first where .env is missing."""
    keys, example = (_word(folder / name) for name in (SECRETS, f"{SECRETS}.example"))
    steps = []
    if not (folder / SECRETS).exists():
        steps.append(f"cp {example} {keys}  # then set the keys in it")
    if bundle.target == "compose":
        return [*steps, f"docker compose -f {_word(folder / 'compose.yaml')} up -d"]
    space = f"-n {bundle.namespace}"
    steps.append(
        f"kubectl create secret generic {bundle.name}-keys --from-env-file={keys} {space} "
        "--dry-run=client -o yaml | kubectl apply -f -"
    )
    if bundle.target == "llm-d":
        values = _word(folder / "router.values.yaml")
        steps.append(f"helm upgrade --install {bundle.name} {_ROUTER} -f {values} {space}")
    return [*steps, f"kubectl apply -k {_word(folder)}"]


def monitoring_step(bundle: Bundle, folder: Path) -> str | None:
    """The command that starts Prometheus, Alertmanager and Grafana; a cluster has its own."""
    if bundle.target != "compose":
        return None
    return f"docker compose -f {_word(folder / 'compose.yaml')} --profile monitoring up -d"


def rollback_step(previous: Bundle, folder: Path) -> str:
    """The command that deploys the bundle before."""
    before = folder / PREVIOUS
    if previous.target == "compose":
        keys = _word(folder / SECRETS)
        return f"docker compose --env-file {keys} -f {_word(before / 'compose.yaml')} up -d"
    return f"kubectl apply -k {_word(before)}"


def _word(path: Path) -> str:
    return shell_word(str(path))
