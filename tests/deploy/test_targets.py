"""Every target: schemas, the same engine words everywhere, keys from secrets, probes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import (
    AWKWARD,
    EDGES,
    HUB,
    SITE,
    as_run,
    awkward,
    container,
    documents,
    draft_and_adapters,
    engine_words,
    environment,
    plan,
    problems,
    resolved,
)
from whet.core.errors import UsageError
from whet.core.records.codec import decode
from whet.core.records.engine import ResolvedEngine
from whet.deploy.render import TARGETS, Site, render, render_script, site_name
from whet.engines.vllm import flags as vllm_flags

REPOSITORY = Path(__file__).parents[2]
RUNS = {
    "demo": REPOSITORY / "results/cpu-demo/run.tar.xz",
    "h200": REPOSITORY / "src/whet/demo/recorded/h200-7b-testbed.tar.xz",
}
VALUES = {"router.values.yaml", "values.yaml"}
"""Of Helm charts, which kubectl does not apply."""
KEY = "sk-a-secret-key-0123456789"


def recorded(run: str, variant: str) -> ResolvedEngine:
    """A variant of a published run."""
    with tarfile.open(RUNS[run]) as tar:
        member = tar.extractfile(f"run/variants/{variant}.json")
        assert member is not None
        return decode(ResolvedEngine, json.load(member))


CASES: dict[str, Callable[[], ResolvedEngine]] = {
    "demo": lambda: recorded("demo", "awq+draft+cache"),
    "h200": lambda: recorded("h200", "fp8+eagle3+cache"),
    "hub": lambda: resolved(model_path=HUB),
    "draft and adapters": draft_and_adapters,
    "two gpus": lambda: resolved(engine_args=(("tensor_parallel_size", 2),)),
    "awkward": lambda: awkward(folder="model"),
}
every_case = pytest.mark.parametrize("case", CASES)
every_target = pytest.mark.parametrize("target", TARGETS)
on_kubernetes = pytest.mark.parametrize("target", [t for t in TARGETS if t != "compose"])


@pytest.fixture(autouse=True)
def _flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_flags, "installed_flags", lambda _python: vllm_flags.shipped_flags())


def test_a_wrong_manifest_is_found() -> None:
    """The schemas refuse what they have to: an unknown key, a wrong type, a missing field."""
    manifest = documents("k8s", plan(resolved()))["deployment.yaml"][0]
    manifest["spec"]["replicas"] = "two"
    manifest["spec"]["template"]["spec"]["contaners"] = []
    assert len(problems(manifest)) == 2
    service = documents("kserve", plan(resolved()))["llminferenceservice.yaml"][0]
    service["spec"]["modle"] = service["spec"].pop("model")
    assert any("modle" in line for line in problems(service))
    compose = documents("compose", plan(resolved()))["compose.yaml"][0]
    compose["services"]["vllm"]["comand"] = []
    assert any("comand" in line for line in problems(compose))
    rule = documents("k8s", plan(resolved()))["monitoring.yaml"][1]
    rule["spec"]["groups"][0]["rules"][0]["expression"] = "up"
    assert any("expression" in line for line in problems(rule))


@every_case
@every_target
def test_every_manifest_validates(target: Any, case: str) -> None:
    checked = 0
    for name, found in documents(target, plan(CASES[case]())).items():
        for document in found:
            if name in ("kustomization.yaml", "router.values.yaml"):
                continue
            assert problems(document) == [], name
            checked += 1
    assert (
        checked == {"compose": 1, "k8s": 4, "kserve": 3, "llm-d": 3, "production-stack": 3}[target]
    )


@every_case
def test_the_chart_turns_the_prefix_cache_as_the_words_do(case: str) -> None:
    """It writes the flag itself, before the engine's words."""
    planned = plan(CASES[case]())
    found = documents("production-stack", planned)["values.yaml"][0]["servingEngineSpec"]
    turned = found["modelSpec"][0]["vllmConfig"]["enablePrefixCaching"]
    assert turned is ("--enable-prefix-caching" in planned.words)
    assert turned is not ("--no-enable-prefix-caching" in planned.words)


@every_case
def test_every_target_has_the_same_engine_words(case: str) -> None:
    planned = plan(CASES[case]())
    for target in TARGETS:
        found = documents(target, planned)
        assert engine_words(target, found) == list(planned.words), target
        named = environment(target, found)
        assert dict(planned.env).items() <= named.items(), target
        assert container(target, found)["image"] == planned.image


def test_awkward_words_reach_the_engine_as_they_were_measured() -> None:
    planned = plan(awkward())
    for target in ("compose", "k8s", "llm-d"):
        found = documents(target, planned)
        words = container(target, found)["command" if target == "compose" else "args"]
        assert [as_run(word) for word in words] == list(planned.args)
        assert AWKWARD in engine_words(target, found)
        assert environment(target, found)["VLLM_ODD"] == AWKWARD
    (manifest,) = documents("k8s", planned)["deployment.yaml"]
    assert manifest["spec"]["template"]["metadata"]["annotations"]["whet/variant"] == AWKWARD
    assert all(char not in planned.model for char in "'\"$:# ")


def test_kserves_shell_reads_awkward_words_back() -> None:
    """KServe's container does this with the variable: bash, eval, double quotes."""
    planned = plan(awkward(folder="model"))
    value = environment("kserve", documents("kserve", planned))["VLLM_ADDITIONAL_ARGS"]
    script = "eval \"exec printf '%s\\0' ${VLLM_ADDITIONAL_ARGS} $@\""
    env = {"VLLM_ADDITIONAL_ARGS": value, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(planned.words)


def test_kserve_refuses_a_model_name_that_it_cannot_serve() -> None:
    with pytest.raises(UsageError, match=r"cannot serve a model named .* choose --target k8s"):
        render("kserve", plan(awkward()), SITE)


@every_target
def test_a_hub_model_is_pinned_to_its_commit(target: Any) -> None:
    found = documents(target, plan(resolved(model_path=HUB)))
    if target == "kserve":
        model = found["llminferenceservice.yaml"][0]["spec"]["model"]
        assert model == {"uri": "hf://org/Model-7B:0123abc", "name": "org/Model-7B"}
        return
    words = container(target, found)["command" if target == "compose" else "args"]
    assert words[:3] == ["org/Model-7B", "--revision", "0123abc"]


@on_kubernetes
def test_local_checkpoints_come_from_one_claim(target: Any) -> None:
    planned = plan(draft_and_adapters())
    text = "".join(render(target, planned, SITE).values())
    found = documents(target, planned)
    mounts = {
        item["mountPath"]: item["subPath"]
        for item in container(target, found)["volumeMounts"]
        if item["name"] == "models"
    }
    wanted = {m.container: m.container.removeprefix("/models/") for m in planned.mounts}
    if target == "kserve":
        model = found["llminferenceservice.yaml"][0]["spec"]["model"]
        assert model["uri"] == "pvc://vllm-model-models/target"
        wanted.pop("/models/target")
    assert mounts == wanted
    assert text.count("claimName: vllm-model-models") == 1
    for mount in planned.mounts:
        assert f"#   {mount.host} as {mount.container.removeprefix('/models/')}\n" in text


@every_target
def test_the_key_comes_from_outside(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "HF_TOKEN", "VLLM_SOME_API_KEY"):
        monkeypatch.setenv(name, KEY)
    planned = plan(resolved(env=(("VLLM_OTHER_API_KEY", KEY), ("HF_TOKEN", KEY))))
    files = render(target, planned, SITE)
    assert KEY not in "".join(files.values()) + render_script(planned)
    found = documents(target, planned)
    if target == "compose":
        service = container(target, found)
        assert service["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
        return
    env = container(target, found)["env"]
    secret = (item for item in env if "valueFrom" in item)
    keys = {item["name"]: item["valueFrom"]["secretKeyRef"] for item in secret}
    assert keys == {
        "VLLM_API_KEY": {"name": "vllm-model-keys", "key": "VLLM_API_KEY"},
        "HF_TOKEN": {"name": "vllm-model-keys", "key": "HF_TOKEN"}
        | ({} if target == "production-stack" else {"optional": True}),
    }


@pytest.mark.parametrize("target", ["compose", "k8s", "llm-d"])
def test_the_generating_probe_sends_the_key_and_the_models_name(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = container(target, documents(target, plan(awkward())))
    command = (
        found["healthcheck"]["test"][1:]
        if target == "compose"
        else found["startupProbe"]["exec"]["command"]
    )
    assert command[:2] == ["python3", "-c"]
    sent: list[Any] = []

    def take(request: Any, timeout: float) -> Any:
        sent.append(request)
        return BytesIO()

    monkeypatch.setattr("urllib.request.urlopen", take)
    monkeypatch.setenv("VLLM_API_KEY", "the key")
    exec(compile(as_run(command[2]), "probe", "exec"), {})
    (request,) = sent
    assert request.full_url == "http://127.0.0.1:8000/v1/completions"
    assert request.get_header("Authorization") == "Bearer the key"
    assert json.loads(request.data) == {"model": AWKWARD, "prompt": "Hi", "max_tokens": 1}


@pytest.mark.parametrize("target", ["k8s", "llm-d"])
def test_a_busy_server_is_neither_restarted_nor_left_without_traffic(target: Any) -> None:
    found = container(target, documents(target, plan(resolved())))
    for probe in ("readinessProbe", "livenessProbe"):
        assert found[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert found["startupProbe"]["failureThreshold"] * found["startupProbe"]["periodSeconds"] == 900


@on_kubernetes
def test_gpus_of_all_kinds_of_parallelism_are_reserved(target: Any) -> None:
    args = (("tensor_parallel_size", 2), ("pipeline_parallel_size", 2), ("data_parallel_size", 3))
    planned = plan(resolved(engine_args=args))
    found = container(target, documents(target, planned))
    assert found["resources"]["limits"] == {"nvidia.com/gpu": "12"}
    compose = container("compose", documents("compose", planned))
    assert compose["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 12


@pytest.mark.parametrize("target", ["k8s", "llm-d"])
def test_the_pod_is_hardened_and_can_be_rolled_back(target: Any) -> None:
    name = {"k8s": "deployment.yaml", "llm-d": "decode.yaml"}[target]
    (manifest,) = documents(target, plan(resolved()))[name]
    spec, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    assert spec["revisionHistoryLimit"] >= 2
    assert spec["strategy"]["type"] == "RollingUpdate"
    assert spec["replicas"] == 2
    assert manifest["metadata"]["annotations"]["kubernetes.io/change-cause"] == "run: v"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["enableServiceLinks"] is False
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert any(v["name"] == "shm" and v["emptyDir"]["medium"] == "Memory" for v in pod["volumes"])
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_router_of_llm_d_finds_the_pods() -> None:
    found = documents("llm-d", plan(resolved()))
    servers = found["router.values.yaml"][0]["router"]["modelServers"]
    (manifest,) = found["decode.yaml"]
    pod = manifest["spec"]["template"]
    assert manifest["metadata"]["name"] == "decode"
    assert servers["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = pod["spec"]["containers"][0]["ports"]
    assert [item["number"] for item in servers["targetPorts"]] == [ports[0]["containerPort"]]


@on_kubernetes
def test_rules_become_a_prometheus_rule_and_without_them_there_is_no_monitor(target: Any) -> None:
    monitor, rule = documents(target, plan(resolved()))["monitoring.yaml"]
    assert rule["spec"]["groups"] == list(SITE.rule_groups)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": SITE.name}]
    bare = render(target, plan(resolved()), Site())
    assert "monitoring.yaml" not in bare
    assert "monitoring.yaml" not in bare["kustomization.yaml"]


def test_compose_starts_monitoring_on_request_only() -> None:
    services = documents("compose", plan(resolved()))["compose.yaml"][0]["services"]
    assert {name for name, item in services.items() if item.get("profiles") == ["monitoring"]} == {
        "prometheus",
        "alertmanager",
        "grafana",
    }
    published = [port for item in services.values() for port in item["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert all(":latest" not in item["image"] for item in services.values())


@on_kubernetes
def test_the_kustomization_names_what_is_there(target: Any, tmp_path: Path) -> None:
    files = render(target, plan(awkward(folder="model")), SITE)
    listed = yaml.safe_load(files["kustomization.yaml"])
    assert listed["namespace"] == "llm"
    assert set(listed["resources"]) == {
        name for name in files if name not in VALUES | {"kustomization.yaml"}
    }
    if shutil.which("kubectl") is None:
        return
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True
    )
    built = list(yaml.safe_load_all(done.stdout))
    assert all(item["metadata"]["namespace"] == "llm" for item in built)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (HUB, "vllm-model-7b"),
        ("/checkpoints/Llama 3.1_8B/", "vllm-llama-3-1-8b"),
        (f"/x/{AWKWARD}", "vllm-it-s-a-b-c-d-e"),
        ("/x/" + "long-" * 20, "vllm-" + "long-" * 8 + "long"),
        ("/x/🙂", "vllm"),
    ],
)
def test_resources_have_a_legal_name_that_no_variant_changes(model: str, name: str) -> None:
    assert site_name("vllm", model) == name


@pytest.mark.parametrize(
    ("version", "tag", "has"),
    [
        ("0.26.0", None, False),
        ("0.31.2", None, False),
        ("0.32.0", None, True),
        ("0.33.0+cpu", None, True),
        ("0.33.0", "v0.26.1", False),
        ("0.26.0", "v0.33.0-cu130", True),
        ("0.26.0", "our-build", False),
    ],
)
def test_the_objectives_are_exact_edges_where_the_engine_can(
    version: str, tag: str | None, has: bool
) -> None:
    from whet.engines.vllm.deployment import plan_deployment

    planned = plan_deployment(resolved(installed=version), image_tag=tag, edges_s=EDGES)
    assert ("--custom-histogram-buckets" in planned.words) is has
    if has:
        text = planned.words[planned.words.index("--custom-histogram-buckets") + 1]
        families = json.loads(text)
        assert set(families) == set(EDGES), "a family without a new edge stays the engine's own"
        for name, edges in families.items():
            assert set(EDGES[name]) <= set(edges)
            assert edges == sorted(set(edges))


def test_edges_of_the_spec_itself_are_left_alone() -> None:
    own = (("custom_histogram_buckets", '{"time_to_first_token": [1.0]}'),)
    assert plan(resolved(engine_args=own)).words.count("--custom-histogram-buckets") == 1


def test_the_default_edges_are_the_installed_engines_own() -> None:
    theirs = pytest.importorskip("vllm.v1.metrics.buckets")
    from whet.engines.vllm.deployment import DEFAULTS, bucket_edges, bucket_words

    for family, edges in DEFAULTS.items():
        assert list(edges) == theirs.histogram_buckets(family)
    assert bucket_words(bucket_edges({"time_to_first_token": (0.5,)}, "0.32.0")) == ()
    wanted = {"time_to_first_token": (0.55,)}
    assert 0.55 in bucket_edges(wanted, "0.32.0")["time_to_first_token"]
    assert bucket_edges(wanted, "0.26.0") == dict(DEFAULTS)


@pytest.mark.parametrize("name", ["a}b", "a{b", "a{b}c", "a\nb", "}:-/etc", "a b$c"])
def test_a_folder_of_any_name_is_mounted_by_compose(name: str) -> None:
    """Compose ends a default at its brace, and takes no line break in one."""
    engine = resolved(model_path=f"/m/{name}")
    (found,) = documents("compose", plan(engine), SITE)["compose.yaml"]
    source = found["services"]["vllm"]["volumes"][2]["source"]
    default = re.fullmatch(r"\$\{\w+:-([^{}]*)\}", source)
    assert as_run(default[1] if default else source) == f"/m/{name}"
