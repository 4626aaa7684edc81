"""What the tests of the targets share: schemas, plans and how a target reads its manifests."""

from __future__ import annotations

import json
import lzma
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.records import variant
from whet.core.records.engine import ResolvedEngine, Speculation
from whet.core.spec import EngineSpec
from whet.deploy.render import Site, render
from whet.engines import get_profile
from whet.engines.compatibility import Installed
from whet.engines.deployment import Deployment
from whet.engines.vllm import VllmEngine

SCHEMAS = Path(__file__).parent / "schemas"
EDGES = {"time_to_first_token": (0.3, 2.0), "inter_token_latency": (0.008,)}
RULES = ({"name": "g", "rules": [{"alert": "A", "expr": "up == 0", "for": "1m"}]},)
SITE = Site(name="vllm-model", namespace="llm", replicas=2, change="run: v", rule_groups=RULES)
HUB = "/cache/hub/models--org--Model-7B/snapshots/0123abc"
AWKWARD = """it's "a" $b ${c} $(d): #e 🙂"""


def resolved(*, installed: str = "0.32.0", **change: Any) -> ResolvedEngine:
    """As vLLM's own adapter resolves it, so that the command is the real one."""
    found = Installed(version=installed, cpu_build=True)
    plain = {"scheme": "BF16", "model_path": "/checkpoints/target", "prefix_cache": True}
    made = variant(**{**plain, **change})
    return VllmEngine(find=lambda _python: found).resolve(made, EngineSpec())


def draft_and_adapters() -> ResolvedEngine:
    """A local checkpoint with a local draft and two adapters."""
    speculation = Speculation(method="draft_model", num_tokens=4, draft_path="/checkpoints/draft")
    loras = (("support", "/adapters/one"), ("sales", "/adapters/a,b"))
    return resolved(speculation=speculation, loras=loras, lora_rank=8)


def awkward(folder: str = AWKWARD) -> ResolvedEngine:
    """Quotes, dollars, colons and hashes wherever a person may write them."""
    return resolved(
        name=AWKWARD,
        model_path=f"/a {AWKWARD}/{folder}",
        env=(("VLLM_ODD", AWKWARD),),
        engine_args=(("generation_config", AWKWARD),),
    )


def plan(engine: ResolvedEngine, **options: Any) -> Deployment:
    """The engine's own plan, with exact edges."""
    planner = get_profile(engine.engine).plan_deployment
    assert planner is not None
    return planner(engine, edges_s=EDGES, **options)


def documents(
    target: Any, planned: Deployment, site: Site = SITE, *, loader: Any = yaml.SafeLoader
) -> dict[str, list[dict[str, Any]]]:
    """Every YAML document of a target by file name."""
    files = render(target, planned, site)
    return {name: list(yaml.load_all(text, loader)) for name, text in files.items()}


@cache
def _schema(name: str) -> Any:
    text = lzma.decompress((SCHEMAS / f"{name}.json.xz").read_bytes()).decode()
    return json.loads(text)


def _closed(schema: Any) -> Any:
    """A schema whose objects take no unknown keys, as ``kubectl --validate=strict`` reads it."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    lists_keys = isinstance(schema.get("properties"), dict) and "type" in schema
    if lists_keys and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


@cache
def _validator(kind: str | None) -> Draft202012Validator:
    if kind == "values":
        return Draft202012Validator(_closed(_schema("production-stack")))
    if kind is None:
        return Draft202012Validator(_schema("compose"))
    definitions = _closed(_schema("kubernetes")["$defs"])
    return Draft202012Validator({"$defs": definitions, "$ref": f"#/$defs/{kind}"})


def problems(document: dict[str, Any]) -> list[str]:
    """How a Compose file or a Kubernetes manifest breaks its schema."""
    kind = "values" if "servingEngineSpec" in document else document.get("kind")
    errors = _validator(kind).iter_errors(document)
    return [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in errors]


def as_run(word: str) -> str:
    """A word as the container gets it, where Compose or Kubernetes has replaced its variables."""
    assert "$" not in word.replace("$$", ""), f"{word} has a variable"
    return word.replace("$$", "$")


def container(target: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The model server's container of a Kubernetes target, or compose's service."""
    if target == "compose":
        service: dict[str, Any] = found["compose.yaml"][0]["services"]["vllm"]
        return service
    if target == "production-stack":
        return _of_chart(found["values.yaml"][0]["servingEngineSpec"])
    name = {"k8s": "deployment", "llm-d": "decode", "kserve": "llminferenceservice"}[target]
    spec = found[f"{name}.yaml"][0]["spec"]["template"]
    (only,) = spec.get("spec", spec)["containers"]
    assert isinstance(only, dict)
    return only


def _of_chart(values: dict[str, Any]) -> dict[str, Any]:
    """The container that the chart's deployment-vllm-multi.yaml makes of its values."""
    (model,) = values["modelSpec"]
    revision = ["--revision", model["modelRevision"]] if "modelRevision" in model else []
    secrets = {"VLLM_API_KEY": values["vllmApiKey"], "HF_TOKEN": model["hf_token"]}
    references = [
        {
            "name": name,
            "valueFrom": {
                "secretKeyRef": {"name": secret["secretName"], "key": secret["secretKey"]}
            },
        }
        for name, secret in secrets.items()
    ]
    return {
        "image": f"{model['repository']}:{model['tag']}",
        "args": [model["modelURL"], *revision, *model["vllmConfig"]["extraArgs"]],
        "env": [*references, *model.get("env", [])],
        "volumeMounts": model["extraVolumeMounts"],
        "resources": {"limits": {"nvidia.com/gpu": str(model["requestGPU"])}},
    }


def environment(target: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """The container's variables that have a value of their own."""
    env = container(target, found).get("environment") or container(target, found)["env"]
    if isinstance(env, list):
        env = {item["name"]: item["value"] for item in env if "value" in item}
    return {name: as_run(text) for name, text in env.items() if not text.startswith("${")}


def engine_words(target: str, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The engine's own flags; KServe hands them on through a variable."""
    if target == "kserve":
        return shlex.split(environment(target, found)["VLLM_ADDITIONAL_ARGS"])
    words = container(target, found)["command" if target == "compose" else "args"]
    run = [as_run(word) for word in words]
    return run[run.index("--served-model-name") + 2 :]
