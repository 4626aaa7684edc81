"""What a server's endpoints say of it: whole, in part, and in words that are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.scripted_server import scripted_server
from whet.client.counters import info_labels, parse_counters
from whet.core.errors import EngineLostError
from whet.core.records.evidence import Declared
from whet.engines.probe import flatten
from whet.engines.vllm.server_info import read_declared

CONFIG = {
    "scheduler_config": {"max_num_seqs": 32, "async_scheduling": False},
    "cache_config": {"kv_cache_dtype": "fp8", "sizes": [1, 2], "empty": {}, "left": None},
}
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="90"} 1.0
"""
WHOLE = {
    "/version": '{"version": "0.32.0"}',
    "/server_info?config_format=json": json.dumps({"vllm_config": CONFIG, "vllm_env": {"A": 1}}),
    "/metrics": METRICS,
    "/v1/models": '{"data": [{"id": "m"}, {"id": "support", "parent": "m"}]}',
}
NOTHING = Declared(version=None, config=(), cache=(), models=(), engines=None)


@contextmanager
def serving(answers: Mapping[str, str]) -> Iterator[str]:
    """A server of these texts by path and query; 404 for every other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = answers.get(self.path)
            body = (text or '{"error": "none"}').encode()
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def declared(**change: str | None) -> Declared:
    """What is read where some endpoints, by their name, say something else or are missing."""
    paths = {path.strip("/").split("?")[0].replace("/", "_"): path for path in WHOLE}
    answers = WHOLE | {paths[name]: text for name, text in change.items()}
    with serving({path: text for path, text in answers.items() if text is not None}) as url:
        return read_declared(url)


def test_every_endpoint_has_its_part() -> None:
    assert declared() == Declared(
        version="0.32.0",
        config=(
            ("cache_config.kv_cache_dtype", "fp8"),
            ("cache_config.left", "null"),
            ("cache_config.sizes", "[1, 2]"),
            ("scheduler_config.async_scheduling", "false"),
            ("scheduler_config.max_num_seqs", "32"),
        ),
        cache=(("block_size", "16"),),
        models=("m", "support"),
        engines=2,
    )


def test_behind_several_api_servers_an_engine_without_a_request_counts() -> None:
    """What vLLM 0.26 and 0.33 show with ``api_server_count`` 2 after one request."""
    silent = 'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
    assert declared(metrics=METRICS.replace(silent, "")).engines == 2


def test_a_setting_is_found_by_its_dotted_key() -> None:
    found = declared()
    assert found.setting("scheduler_config.max_num_seqs") == "32"
    assert found.setting("max_num_seqs") is None


def test_without_the_developer_mode_the_rest_is_read() -> None:
    found = declared(server_info=None)
    assert found.config == ()
    assert (found.version, found.models, found.engines) == ("0.32.0", ("m", "support"), 2)


def test_a_server_that_has_none_of_them_declares_nothing() -> None:
    assert declared(version=None, server_info=None, metrics=None, v1_models=None) == NOTHING


@pytest.mark.parametrize("text", ["", "hello", "[1, 2]", "{", '"text"', "null"])
def test_what_is_no_json_object_declares_nothing(text: str) -> None:
    assert declared(version=text, server_info=text, metrics=text, v1_models=text) == NOTHING


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("version", '{"version": 3}'),
        ("server_info", '{"vllm_config": "model=m"}'),
        ("v1_models", '{"data": 5}'),
        ("v1_models", '{"data": {"id": "m"}}'),
        ("v1_models", '{"data": ["m"]}'),
    ],
)
def test_a_value_of_another_kind_leaves_its_part_empty(endpoint: str, text: str) -> None:
    part = {"version": "version", "server_info": "config", "v1_models": "models"}[endpoint]
    found = declared(**{endpoint: text})
    assert not getattr(found, part)
    assert found.engines == 2


def test_a_secret_in_the_configuration_is_not_kept() -> None:
    secret = json.dumps({"vllm_config": {"model_config": {"hf_token": "hf_abcdefghijklmnop"}}})
    assert declared(server_info=secret).config == (("model_config.hf_token", "[redacted]"),)


def test_the_scripted_server_of_the_tests_declares_what_it_has() -> None:
    with scripted_server() as server:
        found = read_declared(server.url)
    assert found == Declared(
        version="scripted", config=(), cache=(), models=("scripted",), engines=None
    )


def test_a_server_that_does_not_answer_is_lost() -> None:
    with serving({}) as url:
        pass
    with pytest.raises(EngineLostError):
        read_declared(url)


def test_nested_values_are_told_by_dotted_keys() -> None:
    assert dict(flatten({"a": {"b": {"c": 1.5}}, "d": True, "e": [{"f": 1}]})) == {
        "a.b.c": "1.5",
        "d": "true",
        "e": '[{"f": 1}]',
    }
    assert not list(flatten("a bare word"))


def test_labels_on_which_the_engines_agree() -> None:
    assert info_labels(METRICS, "vllm:cache_config_info") == {"block_size": "16"}
    one = METRICS.splitlines()[3]
    assert info_labels(one, "vllm:cache_config_info") == {
        "block_size": "16",
        "engine": "0",
        "num_gpu_blocks": "100",
    }
    assert info_labels(METRICS, "vllm:gone_info") == {}


def test_the_sets_of_adapters_that_ran_together_are_kept_apart() -> None:
    """The gauge's value is the wall-clock second at which that set last ran."""
    text = """
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.5e9
vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e9
"""
    found = dict(parse_counters(text))
    assert found['vllm:lora_requests_info{running_lora_adapters="a,b"}'] == 1.7e9
    assert found['vllm:lora_requests_info{running_lora_adapters=""}'] == 1.5e9
    assert not any("max_lora" in name or "waiting" in name for name in found)
