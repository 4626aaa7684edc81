"""Foreign text in every written file is data: same keys as with a harmless text, and nothing runs.

The payloads stand in every field that comes from outside: a spec, a record, a server, a path.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import SITE, as_run, container, documents
from tests.payloads import CANARY, PAYLOADS, PLAIN, SHELLS, shape
from whet.cli.init import template
from whet.core.errors import UsageError
from whet.core.quote import shell_word, yaml_scalar, yaml_text
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.records.envelope import Envelope, LengthShares, MeasuredLoad, MeasuredRange
from whet.core.redact import UNPRINTABLE
from whet.core.spec import Spec, load_spec, parse_spec
from whet.deploy.monitoring import monitoring_files
from whet.deploy.render import TARGETS, render_script, write_deployment
from whet.engines import get_profile
from whet.flow.ci.scaffold import write_workflow
from whet.watch.causes import CAUSES, Finding, write_proposal

every_payload = pytest.mark.parametrize("text", PAYLOADS.values(), ids=PAYLOADS.keys())
FAKE = '#!/bin/sh\nprintf "%s\\0" "$@" > argv\nprintf "%s" "$FOREIGN" > env\n'
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def held(text: str) -> str:
    """``text`` as YAML holds it: an undecodable byte of a path has no form there."""
    return text.encode(errors="replace").decode()


def resolved(text: str, python: str = "/venv/bin/python") -> ResolvedEngine:
    """A stored command with ``text`` in every field that may hold any."""
    config = {"method": "draft_model", "model": f"/m/{text}", "num_speculative_tokens": 2}
    return ResolvedEngine(
        variant=Variant(
            name=text,
            weights=text,
            scheme=text,
            model_path=f"/m/{text}",
            speculation=Speculation(method=text, num_tokens=2, draft_path=f"/d/{text}"),
            prefix_cache=True,
            loras=((text, f"/l/{text}"),),
            env=(("FOREIGN", text),),
        ),
        engine="vllm",
        engine_version=f"0.32.0{text}",
        device=text,
        served_model_name=text,
        argv=(
            *(python, "-m", "server", "--model", f"/m/{text}"),
            *("--port", "{port}", "--speculative-config", json.dumps(config)),
            *("--lora-modules", f"name=/l/{text}", f"--odd={text}"),
        ),
        env=(("FOREIGN", text),),
        serve_line=text,
        ready_timeout_s=1.0,
    )


def envelope(text: str) -> Envelope:
    load = MeasuredLoad(in_flight=1, ttft_mean_s=1, tpot_mean_s=1, tps=1, rps=1)
    lengths = LengthShares(edges=(), shares=(1.0,), requests=1)
    measured = MeasuredRange(metric="ttft_p95_ms", low=1, high=2, starts=2, limit=3, worse="higher")
    return Envelope(
        run=text,
        variant=text,
        load=text,
        in_flight=1,
        engine=text,
        engine_version=text,
        model=text,
        device=text,
        max_model_len=1,
        num_speculative_tokens=2,
        prefix_cache=True,
        loras=(text,),
        cache=(("cache_dtype", text),),
        ranges=(measured,),
        loads=(load,),
        ttft_limit_ms=1,
        tpot_limit_ms=1,
        e2e_limit_ms=1,
        acceptance_floor=0.5,
        input_tokens_mean=1,
        output_tokens_mean=1,
        prompt_tokens=lengths,
        output_tokens=lengths,
    )


def planned(text: str) -> Any:
    planner = get_profile("vllm").plan_deployment
    assert planner is not None
    plan = planner(resolved(text))
    return plan if text != "" else replace(plan, served_model_name=text)


def manifests(text: str) -> dict[str, Any]:
    """Every manifest, parsed, by target and file; KServe's without the model's name."""
    plan = planned(text)
    own = {"kserve": replace(plan, served_model_name="name")}
    site = replace(SITE, change=text)
    return {t: documents(t, own.get(t, plan), site, loader=LOADER) for t in TARGETS}


@cache
def plain_shapes() -> tuple[Any, Any]:
    return shape(manifests(PLAIN)), {n: shape(f) for n, f in monitoring(PLAIN).items()}


def monitoring(text: str) -> dict[str, Any]:
    files = monitoring_files(envelope(text), edges_s={}, job=text, webhook="http://h/x")
    read = {True: json.loads, False: lambda body: yaml.load(body, LOADER)}
    for body in files.values():
        assert UNPRINTABLE.search(body) is None
    return {name: read[name.endswith(".json")](body) for name, body in files.items()}


def test_there_are_forty_payloads() -> None:
    assert len(set(PAYLOADS.values())) >= 40


@every_payload
def test_manifests_and_rules_have_the_keys_of_harmless_ones(text: str) -> None:
    found, (wanted, rules) = manifests(text), plain_shapes()
    assert shape(found) == wanted
    plan = planned(text)
    for target in ("compose", "k8s", "llm-d"):
        words = container(target, found[target])["command" if target == "compose" else "args"]
        assert [as_run(word) for word in words] == list(map(held, plan.args))
    (manifest,) = found["k8s"]["deployment.yaml"]
    assert manifest["spec"]["template"]["metadata"]["annotations"]["whet/variant"] == held(text)
    rendered = monitoring(text)
    assert {name: shape(file) for name, file in rendered.items()} == rules
    labels = {
        rule["labels"]["variant"]
        for group in rendered["monitoring/rules.yml"]["groups"]
        for rule in group["rules"]
        if "labels" in rule
    }
    assert labels == {held(text).replace("{{", '{{"{{"}}')}, (
        "Prometheus reads a label as a template"
    )


@pytest.mark.parametrize("shell", SHELLS)
@every_payload
def test_a_script_starts_the_server_and_nothing_else(tmp_path: Path, text: str, shell: str) -> None:
    box = tmp_path / "box"
    box.mkdir()
    for name in ("python", "vllm", "docker", "kubectl"):
        (box / name).write_text(FAKE)
        (box / name).chmod(0o755)
    engine = resolved(text, str(box / "python"))
    write_deployment(tmp_path / "out", engine, note=f"EXCLUDED: {text}")
    script = tmp_path / "out" / "serve.sh"
    assert UNPRINTABLE.search(script.read_text()) is None
    before = sorted(box.iterdir())
    env = {"PATH": f"{box}:/usr/bin:/bin", "HOME": str(box), "PORT": "8123"}
    subprocess.run([shell, "-n", script], check=True)
    done = subprocess.run([shell, script], cwd=box, env=env, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    argv = (box / "argv").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    words = planned_words(engine)
    assert argv == [word.replace("{port}", "8123") if word == "{port}" else word for word in words]
    assert (box / "env").read_bytes() == text.encode(errors="surrogateescape")
    assert sorted(box.iterdir()) == sorted([*before, box / "argv", box / "env"])
    assert not list(tmp_path.rglob(CANARY))


def planned_words(engine: ResolvedEngine) -> list[str]:
    planner = get_profile("vllm").plan_deployment
    assert planner is not None
    return list(planner(engine).local_argv[1:])


@every_payload
def test_scalars_documents_and_words_come_back(text: str) -> None:
    back = held(text)
    assert yaml.safe_load(f"a: {yaml_scalar(text)}  # c\nb: 1") == {"a": back, "b": 1}
    assert yaml.safe_load(f"[{yaml_scalar(text)}, 1]") == [back, 1]
    assert yaml.safe_load(yaml_text({text: [text]})) == {back: [back]}
    assert "\n" not in yaml_scalar(text) + shell_word(text)
    assert UNPRINTABLE.search(yaml_scalar(text) + yaml_text({text: 1}) + shell_word(text)) is None


@every_payload
def test_a_first_spec_names_its_models(text: str) -> None:
    for draft, plain_draft in ((None, None), (text, text and PLAIN)):
        data = yaml.load(template(text, draft), LOADER)
        plain = yaml.load(template(PLAIN, plain_draft), LOADER)
        assert shape(data) == shape(plain)
        assert data["model"]["target"] == held(text)


def spec(**change: Any) -> dict[str, Any]:
    data = {
        "name": "chat",
        "model": {"target": "owner/name"},
        "hardware": {"price_usd_per_hour": 1.0},
        "variants": {"fp16": {}, "awq+cache": {"weights": "awq", "prefix_cache": True}},
    }
    return data | change


@every_payload
def test_a_proposal_takes_its_evidence_as_a_comment(tmp_path: Path, text: str) -> None:
    hardware = {"price_usd_per_hour": 1.0, "tier": held(text), "price_source": held(text)}
    engine: dict[str, Any] = {"python": "/venv/bin/python", "env": {"FOREIGN": held(text)}}
    engine["args"] = {"odd": held(text)}
    mine = parse_spec(spec(hardware=hardware, engine=engine), base=tmp_path)
    for cause in [each for each in CAUSES if each.levers][::4]:
        finding = Finding(cause=cause, evidence=(f"the server says {text}", text))
        path = write_proposal(tmp_path, mine, "awq+cache", finding)
        assert UNPRINTABLE.search(path.read_text()) is None
        again = load_spec(path)
        assert again.engine == mine.engine
        assert again.model == mine.model
        assert again.hardware == mine.hardware
        lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert len(lines) <= 5


@every_payload
def test_a_workflow_holds_paths_as_data(tmp_path: Path, text: str) -> None:
    name = f"{text.replace('/', '-')[:100]}.yaml"
    for folder, file in ((tmp_path / "foreign", name), (tmp_path / "plain", f"{PLAIN}.yaml")):
        folder.mkdir()
        (folder / file).write_text(yaml.safe_dump(spec(traffic={"log": f"./{file}"})))
        write_workflow(folder / file, folder)
    workflow, plain = [
        yaml.load((folder / ".github/workflows/whet.yml").read_text(), LOADER)
        for folder in (tmp_path / "foreign", tmp_path / "plain")
    ]
    assert shape(workflow) == shape(plain)
    shown = held(f"./{name}" if name.startswith("-") else name)
    assert workflow["env"]["SPEC"].replace("${{ '${{' }}", "${{") == shown
    assert "${{" not in workflow["env"]["SPEC"].replace("${{ '${{' }}", "")


@pytest.mark.parametrize(
    "name", ["X$(touch f)", "1A", "A B", "", "A=B", "A\nB", "A-B", "É", "A;B", "A\x1b"]
)
@pytest.mark.parametrize("place", ["engine", "engines", "variants"])
def test_a_name_of_a_variable_is_checked(tmp_path: Path, name: str, place: str) -> None:
    inside: dict[str, Any] = {"env": {name: "1"}}
    change = {"engine": inside, "engines": {"sglang": inside}, "variants": {"fp16": inside}}
    with pytest.raises(UsageError, match="is not a name of an environment variable; use letters"):
        parse_spec(spec(**{place: change[place]}), base=tmp_path)


@pytest.mark.parametrize("place", ["model", "engine", "variants"])
def test_a_spec_with_a_nul_is_refused(tmp_path: Path, place: str) -> None:
    change: dict[str, Any] = {
        "model": {"target": "a\0b"},
        "engine": {"args": {"x": "\0"}},
        "variants": {"fp16": {"env": {"A": "x\0"}}},
    }
    with pytest.raises(UsageError, match=r"has a NUL character in .*; remove it"):
        parse_spec(spec(**{place: change[place]}), base=tmp_path)
    with pytest.raises(UsageError, match="has a NUL character, which no command can hold"):
        render_script(planned("a\0b"))


def test_the_spec_class_is_read_back_with_the_same_check() -> None:
    from whet.core.errors import StorageError
    from whet.core.records.codec import decode, encode

    data = encode(resolved(PLAIN))
    with pytest.raises(StorageError, match="is not a name of an environment variable"):
        decode(ResolvedEngine, data | {"env": [["X$(touch f)", "1"]]})
    with pytest.raises(StorageError, match="is not a name of an environment variable"):
        decode(Spec, spec(engine={"env": {"A B": "1"}}))
