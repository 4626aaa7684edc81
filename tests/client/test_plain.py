"""Requests without streaming, counters, and the forms of a call."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.client.raw_server import answering
from tests.scripted_server import scripted_server
from whet.client import (
    CompletionCall,
    Endpoint,
    Failure,
    HttpError,
    get_json,
    get_text,
    parse_counters,
    post_many,
    scrape,
    wire,
)
from whet.client.calls import body_fields
from whet.client.counters import info_labels, parse_buckets
from whet.core.errors import EngineLostError, MeasurementError, UsageError
from whet.engines.probe import NoAnswer, generate_canary
from whet.flow.model_entry import model_entry


@contextmanager
def tls_server(folder: Path) -> Iterator[int]:
    """A server with a certificate that nobody signed but itself; yields its port."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.NameAttribute(NameOID.COMMON_NAME, "h"),
    )
    now, subject = datetime.now(UTC), x509.Name([name])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / "server.pem"
    path.write_bytes(
        certificate.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


COUNTERS = """
# HELP vllm:prefix_cache_hits_total Hits.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="a"} 10.0
vllm:prefix_cache_hits_total{engine="1",model_name="a{\\"}"} 5.0 1700000000000
vllm:prefix_cache_hits_created{engine="0"} 1.7e9
vllm:accepted_per_pos_total{engine="0",position="0"} 7
vllm:accepted_per_pos_total{engine="0",position="1"} 3
vllm:ttft_seconds_bucket{le="0.1"} 4
vllm:ttft_seconds_sum 0.25
vllm:broken NaN
up 1
not a sample
"""


def test_counters_are_summed_over_labels_and_split_by_position() -> None:
    assert dict(parse_counters(COUNTERS)) == {
        "vllm:prefix_cache_hits_total": 15.0,
        "vllm:accepted_per_pos_total": 10.0,
        'vllm:accepted_per_pos_total{position="0"}': 7.0,
        'vllm:accepted_per_pos_total{position="1"}': 3.0,
        "vllm:ttft_seconds_sum": 0.25,
        "up": 1.0,
    }


INFO = """
vllm:cache_config_info{block_size="32",engine="0",kv="a\\"} ,block_size=\\"7"} 1.0
vllm:cache_config_info{engine="1",block_size="32"} 1.0
vllm:mixed_info{size="1"} 1
vllm:mixed_info{size="2"} 1
vllm:half_info{size="1"} 1
vllm:half_info{other="2"} 1
"""


def test_a_fact_that_all_samples_of_an_info_metric_state() -> None:
    assert info_labels(INFO, "vllm:cache_config_info")["block_size"] == "32"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("vllm:gone_info", "size"),
        ("vllm:cache_config_info", "size"),
        ("vllm:mixed_info", "size"),
        ("vllm:half_info", "size"),
    ],
)
def test_a_fact_that_is_absent_or_told_in_two_ways_is_none(name: str, label: str) -> None:
    assert info_labels(INFO, name).get(label) is None


def test_a_counter_that_is_not_exported_is_none_and_not_zero() -> None:
    with scripted_server(hit_share=0.5) as server:
        post_many(server.url, "/v1/completions", [{"prompt": [1]}], concurrency=1, timeout_s=5)
        server.counters["vllm:there_total"] = 0.0
        counters = scrape(server.url)
    assert counters.get("vllm:there_total") == 0.0
    assert counters.get("vllm:spec_decode_num_drafts_total") is None


def test_answers_keep_the_order_of_the_questions_and_failures_their_place() -> None:
    slow_first = [{"prompt": "a", "max_tokens": n, "script": {"ttft_s": 0.05 / n}} for n in (1, 2)]
    bodies = [*slow_first, {"prompt": "a", "script": {"status": 503}}]
    bodies += [{"prompt": "a", "script": {"fault": "not_json"}}]
    with scripted_server() as server:
        got = post_many(server.url, "/v1/completions", bodies, concurrency=4, timeout_s=5)
    first, second, refused, foreign = got
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert [a["usage"]["completion_tokens"] for a in (first, second)] == [1, 2]
    assert isinstance(refused, Failure)
    assert isinstance(foreign, Failure)
    assert (refused.error, foreign.error) == ("http_503", "bad_json")


def test_nobody_there_and_an_http_error_are_told_apart() -> None:
    with pytest.raises(EngineLostError, match="cannot be reached"):
        get_text("http://127.0.0.1:9", "/metrics")
    with scripted_server(metrics=False) as server:
        with pytest.raises(HttpError) as caught:
            scrape(server.url)
        assert caught.value.status == 404
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineLostError, match="no answer within"):
            get_text(url, "/metrics", timeout_s=0.1)


def page(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> list[bytes]:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers, b"", body]
    return [b"\r\n".join(lines)]


def test_a_page_with_a_mark_is_read() -> None:
    with answering(lambda _: page(b'\xef\xbb\xbf{"data": []}')) as (url, _):
        assert get_json(url, "/v1/models") == {"data": []}


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"", b"<html>", b'{"a": 1} x', b"\xff\xfe{\x00}\x00"]
)
def test_a_page_that_is_not_json_is_an_error_of_one_kind(body: bytes) -> None:
    with answering(lambda _: page(body)) as (url, _):
        with pytest.raises(ValueError, match=r"."):
            get_json(url, "/v1/models")
        with pytest.raises(MeasurementError, match="is not a list of models"):
            model_entry(url, None)
        with pytest.raises(NoAnswer, match="/v1/completions answered"):
            generate_canary(url, "m", timeout_s=5)


@pytest.mark.parametrize("status", [403, 404, 405, 501])
def test_a_server_without_a_list_has_the_model_that_is_named(status: int) -> None:
    refusal = page(b"{}", status=b"%d X" % status)
    with answering(lambda _: refusal) as (url, _):
        assert model_entry(url, "gpt") == {"id": "gpt"}
        with pytest.raises(HttpError, match=f"answered HTTP {status}"):
            model_entry(url, None)


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_list_that_is_refused_or_late_is_an_error(status: int) -> None:
    refusal = page(b"{}", status=b"%d X" % status)
    with (
        answering(lambda _: refusal) as (url, _),
        pytest.raises((HttpError, UsageError), match=str(status)),
    ):
        model_entry(url, "gpt")


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2}, {"n": None}, {"best_of": 2}, {"stream": False}, {"stream": None}, {"echo": True},
        {"use_beam_search": True}, {"prompt_logprobs": 1}, {"model": "x"}, {"prompt": "a"},
        {"messages": []},
    ],
)  # fmt: skip
@pytest.mark.parametrize("what", ["--extra-body", "engine.args.extra_body"])
def test_fields_of_other_traffic_are_refused(fields: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=f"^{what} sets {next(iter(fields))}: .* one stream"):
        body_fields(json.dumps({"top_k": 5} | fields), what)


def test_fields_that_leave_one_stream_are_sent() -> None:
    fields = {"n": 1, "best_of": 1, "stream": True, "echo": False, "model": None, "logprobs": 1}
    fields |= {"stream_options": None, "temperature": 0.5, "return_token_ids": True}
    assert body_fields(json.dumps(fields), "--extra-body") == fields


def test_a_compressed_page_is_named() -> None:
    with (
        answering(lambda _: page(b"\x1f\x8b\x08", b"Content-Encoding: gzip")) as (url, _),
        pytest.raises(HttpError, match="encoded as gzip; turn compression off"),
    ):
        get_text(url, "/metrics")


def test_a_page_that_drips_ends_at_the_time_limit() -> None:
    """Each read of the socket brings something in time, and the whole never comes."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
    with (
        answering(lambda _: [head, *[b"x"] * 100]) as (url, _),
        pytest.raises(EngineLostError, match=r"no answer within 0\.3 s"),
    ):
        get_text(url, "/metrics", timeout_s=0.3)


def test_a_page_without_end_is_cut_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BODY_BYTES", 1000)
    with (
        answering(lambda _: page(b"x" * 5000)) as (url, _),
        pytest.raises(EngineLostError, match="more than 1000 bytes"),
    ):
        get_text(url, "/metrics")


def test_half_a_surrogate_pair_is_sent_as_json_has_it() -> None:
    sent = Endpoint.parse("http://h").post("/v1/completions", {"prompt": "a\ud83d b\U0001f642"})
    head, _, body = sent.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"prompt": "a\ud83d b\U0001f642"}


def test_a_call_has_exactly_one_form_of_prompt() -> None:
    for call in (CompletionCall(), CompletionCall(prompt="a", prompt_token_ids=(1,))):
        with pytest.raises(UsageError, match="needs one prompt"):
            call.body(model="m", stream=False)


def test_fields_of_one_engine_are_sent_only_when_asked_for() -> None:
    plain = CompletionCall(prompt="a")
    body = plain.body(model="m", stream=True)
    assert body["stream_options"] == {"include_usage": True}
    assert plain.body(model="m", stream=False).keys() == {
        "model", "prompt", "max_tokens", "temperature"
    }  # fmt: skip
    both = CompletionCall(prompt="a", ignore_eos=True).body(model="m", stream=True)
    assert (both["ignore_eos"], both["skip_special_tokens"]) == (True, False)


def test_a_field_that_is_none_is_left_out() -> None:
    none = {"stream_options": None, "temperature": None, "skip_special_tokens": None}
    call = CompletionCall(prompt="a", ignore_eos=True, extra=none)
    assert not none.keys() & call.body(model="m", stream=True).keys()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h:8000/v1/", ("h", 8000, False, "")),
        ("https://api.example.org/openai/v1", ("api.example.org", 443, True, "/openai")),
        ("http://[::1]:7", ("::1", 7, False, "")),
        ("http://[fe80::1%25eth0]:7/v1", ("fe80::1%eth0", 7, False, "")),
        ("HTTP://H.:8000", ("h.", 8000, False, "")),
    ],
)
def test_a_base_url_is_understood_with_and_without_v1(
    url: str, said: tuple[str, int, bool, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-secret\n")
    endpoint = Endpoint.parse(url)
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.prefix) == said
    assert "secret" not in repr(endpoint)
    assert endpoint.headers()["Authorization"] == "Bearer sk-secret-secret"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:8000", "write http://host:port"),
        ("ftp://h", "write http://host:port"),
        ("ftp://h:21", "write http://host:port"),
        ("http://", "write http://host:port"),
        ("http://h:99999", "write http://host:port"),
        ("http://h:0", "port 0"),
        ("http://::1:8000", r"in brackets as http://\[::1\]:8000"),
        ("http://[::1]8000", "only a port follows the bracket"),
        ("http://[::1", "in brackets"),
        ("http://[gg::1]:1", "gg::1"),
        ("http://a..b:1", "not a name or an address"),
        (f"http://{'a' * 64}:1", "not a name or an address"),
        ("http://h:1/a b", "other characters as %XX"),
        ("http://h:1 ", "other characters as %XX"),
        ("http://h\n:1", "other characters as %XX"),
        ("http://b\u00fccher.example", "its ASCII form"),
        ("http://h/v1?api-version=1&key=x", "a query .* requests carry only api-version"),
        ("http://h/v1?key=1", "a server that needs it cannot be measured as it is"),
        ("http://h/v1?", "query"),
        ("http://h/v1?api-version=1#a", "fragment"),
        ("http://h/v1#part", "fragment"),
        ("http://bob:hunter2pass@h", "OPENAI_API_KEY"),
        ("http://bob:hunter2/pass@h", "OPENAI_API_KEY"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_fix(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        Endpoint.parse(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel-1234", "two words", "line\nbreak"])
def test_a_key_that_no_header_carries_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UsageError, match="OPENAI_API_KEY has a character") as caught:
        get_text("http://127.0.0.1:9", "/v1/models")
    assert key not in str(caught.value)


def test_a_certificate_that_is_not_trusted_names_the_variable_to_set(tmp_path: Path) -> None:
    with tls_server(tmp_path) as port:
        with pytest.raises(EngineLostError, match=r"not trusted.*SSL_CERT_FILE"):
            get_text(f"https://127.0.0.1:{port}", "/v1/models")
        with pytest.raises(EngineLostError, match="write https://"):
            get_text(f"http://127.0.0.1:{port}", "/v1/models")
    with scripted_server() as plain, pytest.raises(EngineLostError, match="write http://"):
        get_text(plain.url.replace("http:", "https:"), "/v1/models", timeout_s=1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm:kv_cache_usage_perc", 0.75),
        ("sglang:token_usage", 0.75),
        ("sglang:cache_hit_rate", 0.75),
        ("process_start_time_seconds", 0.75),
        ("vllm:num_requests_running", 1.25),
        ("vllm:kv_cache_usage_perc_total", 1.25),
    ],
)
def test_shares_and_moments_are_not_summed_over_engines(name: str, value: float) -> None:
    text = f'{name}{{engine="0"}} 0.5\n{name}{{engine="1"}} 0.75\n'
    assert dict(parse_counters(text)) == {name: value}


def test_a_time_and_an_exemplar_after_a_value_are_no_value() -> None:
    text = 'a_total{x="}{"} 5 # {trace_id="b"} 0.3 1.7e9\nb 7 1700000000.123\nc{} 3\n'
    assert dict(parse_counters(text)) == {"a_total": 5.0, "b": 7.0, "c": 3.0}


def test_a_bucket_that_is_not_a_number_is_left_out() -> None:
    text = 'a_bucket{le="1"} 2\na_bucket{le="x"} 3\na_bucket{le="+Inf"} 4\na_bucket{le="2"} x\n'
    assert parse_buckets(text, "a") == ((1.0, 2.0), (float("inf"), 4.0))
