"""Render ``compose.yaml`` and ``serve.sh`` for one variant."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from whet.core.records.engine import ResolvedEngine
from whet.core.store import write_atomic
from whet.deploy.settings import Deployment, plan_deployment

IMAGE: Final = "vllm/vllm-openai"
_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?")
_EXECUTABLE: Final = 0o755


def write_deployment(
    folder: Path, resolved: ResolvedEngine, *, image_tag: str | None = None
) -> None:
    """Write ``compose.yaml`` (official image, NVIDIA container toolkit) and ``serve.sh``.

    ``image_tag`` pins the image; by default it is the version that was measured, ``v0.32.0``. An
    attached server, which nobody here started, gets only a note. Raises ``StorageError`` where the
    folder cannot be written.
    """
    if resolved.url is not None:
        write_atomic(folder / "README.txt", f"{resolved.serve_line}\n".encode())
        return
    plan = plan_deployment(resolved)
    tag = image_tag or _tag(resolved.engine_version)
    compose = _render("compose.yaml.j2", plan, resolved, tag=tag)
    serve = _render("serve.sh.j2", plan_deployment(resolved, mounted=False), resolved, tag=tag)
    write_atomic(folder / "compose.yaml", compose.encode())
    write_atomic(folder / "serve.sh", serve.encode())
    (folder / "serve.sh").chmod(_EXECUTABLE)


def _tag(version: str) -> str:
    match = _RELEASE.match(version)
    return f"v{match[0]}" if match else "latest"


def _render(template: str, plan: Deployment, resolved: ResolvedEngine, *, tag: str) -> str:
    environment = Environment(
        loader=PackageLoader("whet.deploy"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["yaml"] = _yaml_word
    environment.filters["sh"] = shlex.quote
    environment.filters["line"] = lambda text: " ".join(str(text).split())
    return environment.get_template(template).render(
        plan=plan, resolved=resolved, image=f"{IMAGE}:{tag}"
    )


def _yaml_word(text: str) -> str:
    """A double-quoted YAML scalar; Compose reads ``$`` as a variable unless it is doubled."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)
