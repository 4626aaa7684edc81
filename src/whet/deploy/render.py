"""Render a deployment plan for a target: one folder of templates each, plus ``serve.sh``."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, get_args

import yaml

from whet.core.errors import UsageError
from whet.core.hub import snapshot_of
from whet.core.records.bundle import Target
from whet.engines.deployment import Deployment

if TYPE_CHECKING:
    from jinja2 import Environment

TARGETS: Final[tuple[Target, ...]] = get_args(Target)
SCRIPT: Final = "serve.sh"
_TEMPLATE: Final = ".j2"
_KSERVE_NAME: Final = re.compile(r"[A-Za-z0-9._/-]+")
_NAME_LIMIT: Final = 50  # a label of 63 characters, with room for the suffixes of its resources


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where a plan is deployed.

    ``name`` is that of its resources and stays the same for another variant of the same model, so
    that a later deployment replaces an earlier one. ``change`` says what is deployed, in words.
    ``rule_groups`` are the groups of a Prometheus rule file, empty without monitoring.
    """

    name: str = "vllm"
    namespace: str = "default"
    replicas: int = 1
    change: str = ""
    scrape_interval_s: float = 15.0
    rule_groups: tuple[dict[str, Any], ...] = ()


def site_name(engine: str, model: str) -> str:
    """A DNS label for a checkpoint's folder or hub id: ``vllm-qwen2-5-7b-instruct``."""
    snapshot = snapshot_of(model)
    last = (snapshot.hub_id if snapshot else model).rstrip("/").rsplit("/", 1)[-1]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{engine}-{last}".lower())
    return slug[:_NAME_LIMIT].strip("-")


def render(target: Target, plan: Deployment, site: Site) -> dict[str, str]:
    """The files of one target by name; a template that renders to nothing makes no file.

    Raises ``UsageError`` for a model name that the target cannot serve.
    """
    if target == "kserve" and _KSERVE_NAME.fullmatch(plan.served_model_name) is None:
        raise UsageError(
            f"KServe cannot serve a model named {plan.served_model_name!r}; rename its folder to "
            "letters, digits, '.', '_', '-' and measure again, or choose --target k8s"
        )
    folder = resources.files("whet.deploy").joinpath("templates", target)
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(_TEMPLATE))
    texts = {
        name.removesuffix(_TEMPLATE): _rendered(f"{target}/{name}", plan=plan, site=site)
        for name in names
    }
    return {name: text for name, text in texts.items() if text.strip()}


def render_script(plan: Deployment) -> str:
    """``serve.sh``: the command for the machine that measured, without a container."""
    return _rendered(f"{SCRIPT}{_TEMPLATE}", plan=plan)


def _rendered(template: str, **values: object) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import

    environment = Environment(
        loader=PackageLoader("whet.deploy"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "q": _quoted,
        "word": lambda text: _quoted(text.replace("$", "$$")),
        "python": lambda text: json.dumps(json.loads(text)).replace("$", "$$"),
        "sh": shlex.quote,
        "words": shlex.join,
        "line": lambda text: " ".join(str(text).split()),
        "block": lambda value: yaml.safe_dump(value, sort_keys=False, width=1000),
        "label": _label,
    }
    return environment


def _quoted(text: str) -> str:
    """A double-quoted YAML scalar on one line.

    Compose and Kubernetes read ``$`` as a variable unless it is doubled (the filter ``word``).
    """
    dumped = yaml.safe_dump(text, default_style='"', width=float("inf"), allow_unicode=True)
    return dumped.removesuffix("\n")


def _label(text: str) -> str:
    """The value of a Kubernetes label: at most 63 letters, digits, ``-``, ``_`` and ``.``."""
    return _quoted(re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._"))
