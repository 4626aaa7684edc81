"""Render ``compose.yaml`` and ``serve.sh`` for one variant."""

from __future__ import annotations

import json
import re
import shlex
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from whet.core.records.engine import ResolvedEngine
from whet.core.redact import public_env
from whet.engines.vllm.deploy.settings import HOUSEKEEPING_ENV, plan_deployment
from whet.engines.vllm.hub_words import by_hub_id

IMAGE: Final = "vllm/vllm-openai"
_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?")


def deployment_files(resolved: ResolvedEngine, image_tag: str | None) -> dict[str, str]:
    """The text of ``compose.yaml`` (official CUDA image) and ``serve.sh``, by file name."""
    image = f"{IMAGE}:{image_tag or _tag(resolved.engine_version)}"
    plan = plan_deployment(resolved)
    env = [
        pair for pair in public_env(dict(resolved.env)).items() if pair[0] not in HOUSEKEEPING_ENV
    ]
    return {
        "compose.yaml": _render("compose.yaml.j2", resolved=resolved, plan=plan, image=image),
        "serve.sh": _render(
            "serve.sh.j2", resolved=resolved, plan=plan, argv=by_hub_id(resolved.argv), env=env
        ),
    }


def _tag(version: str) -> str:
    match = _RELEASE.match(version)
    return f"v{match[0]}" if match else "latest"


def _render(template: str, **values: object) -> str:
    environment = Environment(
        loader=PackageLoader("whet.engines.vllm.deploy"),
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
