"""Render a deployment plan for a target, one folder of templates each, and write its files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

from whet.core.errors import UsageError
from whet.core.hub import snapshot_of
from whet.core.load import Load
from whet.core.names import did_you_mean
from whet.core.quote import shell_word, yaml_scalar, yaml_text
from whet.core.records.engine import ResolvedEngine
from whet.core.redact import clean, one_line
from whet.core.store import write_atomic
from whet.engines import get_profile
from whet.engines.command import shell_line
from whet.engines.deployment import Deployment, Mount

if TYPE_CHECKING:
    from jinja2 import Environment

SCRIPT: Final = "serve.sh"
_TEMPLATE: Final = ".j2"
_NAME_LIMIT: Final = 50  # a label of 63 characters, with room for the suffixes of its resources


_RECORD: Final = "target.yaml"


class Target(BaseModel):
    """One platform, as its ``target.yaml`` describes it.

    ``start``, ``monitoring`` and ``rollback`` are shell commands in which ``{folder}``, ``{keys}``,
    ``{previous}``, ``{name}`` and ``{namespace}`` are replaced by shell words. ``monitoring`` is
    None where Prometheus and Grafana are the platform's own. ``cluster``: it is Kubernetes.
    ``model_name`` is the pattern of the names that it can serve.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    cluster: bool = False
    start: tuple[str, ...]
    rollback: str
    monitoring: str | None = None
    model_name: re.Pattern[str] = re.compile(".*", re.DOTALL)


def _templates() -> Traversable:
    return resources.files("whet.deploy").joinpath("templates")


TARGETS: Final = tuple(
    sorted(item.name for item in _templates().iterdir() if item.joinpath(_RECORD).is_file())
)
"""The names of all targets."""


@cache
def get_target(name: str) -> Target:
    """Return the target of that name; ``UsageError`` for an unknown one."""
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise UsageError(f"unknown target {name!r}{did_you_mean(name, TARGETS)} (known: {known})")
    text = _templates().joinpath(name, _RECORD).read_text(encoding="utf-8")
    return Target.model_validate(yaml.safe_load(text))


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


def render(target: str, plan: Deployment, site: Site) -> dict[str, str]:
    """The files of one target by name; a template that renders to nothing makes no file.

    Raises ``UsageError`` for an unknown target and a model name that it cannot serve.
    """
    known = get_target(target)
    if known.model_name.fullmatch(plan.served_model_name) is None:
        raise UsageError(
            f"{known.title} cannot serve a model named {plan.served_model_name!r}",
            fix="rename its folder to "
            "letters, digits, '.', '_', '-' and measure again, or choose --target k8s",
        )
    folder = _templates().joinpath(target)
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
    return _environment(template == f"{SCRIPT}{_TEMPLATE}").get_template(template).render(values)


@cache
def _environment(shell: bool) -> Environment:
    """Templates in which every text is quoted: as a shell word, or as a YAML scalar.

    What is part of the template itself is marked ``safe``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import
    from markupsafe import Markup

    quote = shell_word if shell else yaml_scalar

    def quoted(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Markup):
            return Markup(quote(value))
        return value

    environment = Environment(
        loader=PackageLoader("whet.deploy"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,  # so that what a macro returns is Markup
        finalize=quoted,
    )
    environment.filters |= {
        "word": _word,
        "source": _source,
        "python": lambda text: Markup(json.dumps(json.loads(text)).replace("$", "$$")),
        "words": shlex.join,
        "line": lambda text: Markup(one_line(text)),
        "block": lambda value: Markup(yaml_text(value)),
        "label": _label,
    }
    return environment


def _word(text: str) -> str:
    """A text in which Compose and Kubernetes replace no variable."""
    return text.replace("$", "$$")


def _source(mount: Mount) -> str:
    """A folder that a variable replaces; a brace or line break in its name would end the default.

    Compose takes such a folder as it is.
    """
    host = _word(mount.host)
    return host if re.search(r"[{}\r\n]", host) else f"${{{mount.variable}:-{host}}}"


def _label(text: str) -> str:
    """The value of a Kubernetes label: at most 63 letters, digits, ``-``, ``_`` and ``.``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


_EXECUTABLE: Final = 0o755


def write_deployment(
    folder: Path,
    resolved: ResolvedEngine,
    *,
    note: str = "",
    limits: Sequence[str] = (),
    as_measured: bool = False,
) -> None:
    """Write ``compose.yaml`` (a container) and ``serve.sh`` (the machine that measured).

    The image is of the version that was measured; ``as_measured`` is that of ``DeploymentPlanner``.
    ``note`` and the decision's ``limits`` are comments at the head
    of each file. An attached server and an engine without a plan get these and the command alone.
    Raises ``StorageError`` where the folder cannot be written.
    """
    planner = get_profile(resolved.engine).plan_deployment
    if resolved.url is not None or planner is None:
        lines = (*_comments(limits, note), clean(resolved.serve_line), "")
        write_atomic(folder / "README.txt", "\n".join(lines))
        return
    plan = planner(resolved, as_measured=as_measured)
    files = {**render("compose", plan, Site()), SCRIPT: render_script(plan)}
    for name, text in files.items():
        write_file(folder / name, commented(text, limits, note))


def deployed_line(resolved: ResolvedEngine, load: Load) -> str | None:
    """The command of ``serve.sh`` without its latency buckets; None for an attached server."""
    planner = get_profile(resolved.engine).plan_deployment
    if resolved.url is not None or planner is None:
        return None
    plan = planner(resolved, load=load)
    return shell_line(plan.local_argv, plan.local_env, port=plan.port)


def commented(text: str, limits: Sequence[str], note: str = "") -> str:
    """Return a script or a YAML file that begins with ``note`` and ``limits`` as comments."""
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    lines = (f"# {line}" for line in _comments(limits, note))
    return "\n".join(filter(None, (first, *lines, rest)))


def _comments(limits: Sequence[str], note: str) -> Iterator[str]:
    """Yield lines without line breaks or control characters."""
    yield from ([one_line(note)] if note else [])
    yield from (f"Limit: {one_line(limit)}" for limit in limits)


def write_file(path: Path, text: str) -> None:
    """Write one file of a deployment; a script is executable."""
    write_atomic(path, text)
    if path.suffix == ".sh":
        path.chmod(_EXECUTABLE)
