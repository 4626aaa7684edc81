"""Render ``compose.yaml`` and ``serve.sh`` for one variant."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from whet.core.records.engine import ResolvedEngine
from whet.core.redact import public_env
from whet.core.store import write_atomic
from whet.deploy.settings import HOUSEKEEPING_ENV, plan_deployment

IMAGE: Final = "vllm/vllm-openai"
_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?")
_EXECUTABLE: Final = 0o755


def write_deployment(
    folder: Path, resolved: ResolvedEngine, *, image_tag: str | None = None
) -> None:
    """Write ``compose.yaml`` (official CUDA image) and ``serve.sh`` (the command that measured).

    ``image_tag`` pins the image; by default it is the version that was measured, ``v0.32.0``. An
    attached server gets only a note. Raises ``StorageError`` where the
    folder cannot be written.
    """
    if resolved.url is not None:
        write_atomic(folder / "README.txt", f"{resolved.serve_line}\n".encode())
        return
    image = f"{IMAGE}:{image_tag or _tag(resolved.engine_version)}"
    plan = plan_deployment(resolved)
    compose = _render("compose.yaml.j2", resolved=resolved, plan=plan, image=image)
    env = [
        pair for pair in public_env(dict(resolved.env)).items() if pair[0] not in HOUSEKEEPING_ENV
    ]
    serve = _render("serve.sh.j2", resolved=resolved, env=env)
    write_atomic(folder / "compose.yaml", compose.encode())
    write_atomic(folder / "serve.sh", serve.encode())
    (folder / "serve.sh").chmod(_EXECUTABLE)


def _tag(version: str) -> str:
    match = _RELEASE.match(version)
    return f"v{match[0]}" if match else "latest"


def _render(template: str, **values: object) -> str:
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
    return environment.get_template(template).render(values)


def _yaml_word(text: str) -> str:
    """A double-quoted YAML scalar; Compose reads ``$`` as a variable unless it is doubled."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)
