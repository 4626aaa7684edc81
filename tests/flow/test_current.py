"""The user's present command, read and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core.errors import UsageError
from whet.flow.init.current import PresentCommand, read_current

SPECULATION = '{"method": "eagle3", "model": "o/head", "num_speculative_tokens": 3}'
FLAGS = "o/m --max-model-len 8192 --gpu-memory-utilization=0.9 --enable-chunked-prefill"
PLAIN = f"vllm serve {FLAGS}"
ARGS = {"max_model_len": 8192, "gpu_memory_utilization": 0.9, "enable_chunked_prefill": True}
COMPOSE: dict[str, Any] = {
    "services": {
        "proxy": {"image": "nginx", "command": ["nginx", "-g", "daemon off;"]},
        "llm": {
            "image": "vllm/vllm-openai:v0.33.0",
            "command": "--model o/m --max-model-len 8192 --gpu-memory-utilization 0.9 "
            "--enable-chunked-prefill --api-key ${KEY}",
            "environment": {"VLLM_USE_RUST_FRONTEND": "1", "HF_TOKEN": "hf_abcdefgh123"},
        },
    }
}
POD: dict[str, Any] = {
    "kind": "Deployment",
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "vllm",
                        "image": "ghcr.io/team/vllm-custom:1",
                        "command": ["/bin/sh", "-c"],
                        "args": [f"exec {PLAIN} --port 8000"],
                        "env": [
                            {"name": "VLLM_USE_RUST_FRONTEND", "value": "1"},
                            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"key": "k"}}},
                        ],
                    }
                ]
            }
        }
    },
}


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"/opt/venv/bin/{PLAIN}",
        PLAIN.replace(" --", " \\\n  --"),
        PLAIN.replace("max-model-len 8192", "max_model_len=8192"),
        f"#!/bin/bash\nset -e\n# vllm serve other\nexec {PLAIN} > log.txt 2>&1 &\nsleep 5",
        f"cd /srv && {PLAIN} | tee log",
        f"bash -lc '{PLAIN}'",
        f"python3 -m vllm.entrypoints.openai.api_server --model {FLAGS}",
        f"docker run --gpus all -v ~/.cache/vllm:/root --rm -p 8000:8000 --name vllm "
        f"vllm/vllm-openai:v0.33.0 --model {FLAGS}",
        f"docker run -d --ipc=host nvcr.io/nvidia/vllm:26.10 {PLAIN}",
    ],
)
def test_forms_of_one_command_are_one(text: str) -> None:
    read = read_current(text)
    assert (read.serve.model, dict(read.serve.args)) == ("o/m", ARGS)
    assert read.serve.prefix_cache
    assert read.left_out == ()


@pytest.mark.parametrize(("data", "name"), [(COMPOSE, "compose.yaml"), (POD, "pod.yml")])
def test_a_service_of_a_file_is_the_command(
    tmp_path: Path, data: dict[str, Any], name: str
) -> None:
    (tmp_path / name).write_text(yaml.safe_dump(data))
    read = read_current(str(tmp_path / name))
    assert (read.serve.model, dict(read.serve.args)) == ("o/m", ARGS)
    assert dict(read.env) == {"VLLM_USE_RUST_FRONTEND": "1"}
    assert "HF_TOKEN" in read.left_out


def test_what_is_quoted_is_no_comment_and_no_redirection() -> None:
    own = """--chat-template 'a # b > c' --served-model-name "x # \\" > y" # 'z > /dev/null"""
    serve = read_current(f"{PLAIN} {own}").serve
    assert serve.args == {**ARGS, "chat_template": "a # b > c"}


def test_what_whet_sets_itself_and_secrets_are_named_and_left_out() -> None:
    read = read_current(
        "HF_TOKEN=hf_secret12345 VLLM_ATTENTION_BACKEND=X CUDA_VISIBLE_DEVICES=0 vllm serve o/m "
        "--host 0.0.0.0 --port 80 --served-model-name a b --api-key $KEY --disable-log-requests "
        "--chat-template hf_secret12345 --lora-modules a=/x b=/y --ssl-keyfile k --seed 7"
    )
    assert dict(read.serve.args) == {"seed": 7}
    assert dict(read.env) == {"VLLM_ATTENTION_BACKEND": "X"}
    assert set(read.left_out) == {
        *("host", "port", "served_model_name", "api_key", "disable_log_requests", "chat_template"),
        *("lora_modules", "ssl_keyfile", "HF_TOKEN", "CUDA_VISIBLE_DEVICES"),
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            f"--speculative-config '{SPECULATION}'",
            {"method": "eagle3", "draft": "o/head", "num_tokens": 3},
        ),
        (
            "--speculative-config.method ngram --speculative-config.num_speculative_tokens 4 "
            "--speculative-config.prompt_lookup_max 3",
            {"method": "ngram", "num_tokens": 4, "options": {"prompt_lookup_max": 3}},
        ),
        (
            "--spec-method qwen3_next_mtp --spec-tokens 2",
            {"method": "mtp", "num_tokens": 2},
        ),
        (
            "--speculative-config "
            + json.dumps(
                {
                    "method": "eagle3",
                    "model": "o/h",
                    "num_speculative_tokens": 6,
                    "num_speculative_tokens_per_batch_size": [[1, 8, 6], [9, 64, 2]],
                    "rejection_sample_method": "block",
                }
            ).join("''"),
            {
                "method": "eagle3",
                "draft": "o/h",
                "num_tokens": 6,
                "num_tokens_by_load": [[1, 8, 6], [9, 64, 2]],
                "rejection_sample_method": "block",
            },
        ),
    ],
)
def test_speculation_has_the_keys_of_a_spec(flags: str, expected: dict[str, Any]) -> None:
    read = read_current(f"vllm serve o/m {flags} --no-enable-prefix-caching")
    assert read.serve.speculation == expected
    assert not read.serve.prefix_cache
    assert read.serve.args == {}


def test_parts_of_one_object_and_short_flags() -> None:
    read = read_current(
        "vllm serve o/m -tp 2 -O3 -cc.cudagraph_mode FULL --cudagraph-capture-sizes 1 2 4 "
        "--no-enable-chunked-prefill"
    )
    args = dict(read.serve.args)
    config = json.loads(str(args.pop("compilation_config")))
    assert config == {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4]}
    expected = {"tensor_parallel_size": 2, "optimization_level": 3, "enable_chunked_prefill": False}
    assert args == expected


def bad(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read_current(text)
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "starts no vLLM server"),
        ("ollama run llama", "starts no vLLM server"),
        ("vllm bench serve o/m", "starts no vLLM server"),
        ("vllm serve o/m --speculative-config '{", "cannot be read (No closing quotation)"),
        ("vllm serve o/m --speculative-config [1]", "is not a JSON object"),
        ("vllm serve o/m --spec-method mtp", "no num_speculative_tokens"),
        ("vllm serve o/m extra --seed 1", "the word 'extra', which belongs to no flag"),
        ("vllm serve o/m --config f.yaml", "reads flags from a file"),
        ("vllm serve $MODEL --seed 1", "a shell variable in model ('$MODEL')"),
        ("vllm serve o/m --max-model-len $LEN", "a shell variable in max_model_len"),
        ("vllm serve a/b; vllm serve c/d", "starts 2 vLLM servers"),
        ("vllm serve o/m -cc.a 1 -cc.a.b 2", "gives compilation_config.a a value and keys"),
        ("vllm serve o/m --speculative-config " + "[" * 9000, "is not a JSON object"),
        ("~nobody -x", "starts no vLLM server"),
        ("a" * 9000, "no file at aaa"),
        ("./nowhere.sh", "no file at ./nowhere.sh"),
        ("vllm serve " + "a" * (1 << 20) + " b", "longer than 1 MiB"),
    ],
)
def test_a_command_that_cannot_be_read_is_one_sentence(text: str, sentence: str) -> None:
    assert sentence in bad(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: &a [*a, *a]\n",
        "[" * 5000,
        "services: {a: {image: nginx, command: x}}",
        "a: &a {b: &b [1]}\nc: [*a, *a, *b]",
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "compose.yaml").write_text(text)
    assert "the present command" in bad(str(tmp_path / "compose.yaml"))


def test_two_services_are_one_too_many(tmp_path: Path) -> None:
    services = COMPOSE["services"] | {"other": {**COMPOSE["services"]["llm"]}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"services": services}))
    assert "starts 2 vLLM servers" in bad(str(tmp_path / "c.yaml"))


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    read: PresentCommand = read_current(
        f"vllm serve o/m --seed 1 ; touch {mark} && $(touch {mark})"
    )
    assert read.serve.model == "o/m"
    assert not mark.exists()
