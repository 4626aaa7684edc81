"""The addresses that people give, and where their pages are."""

from __future__ import annotations

import pytest

from tests.client.raw_server import answering
from whet.client import Endpoint, HttpError, get_text
from whet.core.errors import UsageError


@pytest.mark.parametrize(
    ("url", "models", "metrics"),
    [
        ("http://h:1", "/v1/models", "/metrics"),
        ("http://h:1/", "/v1/models", "/metrics"),
        ("http://h:1/v1", "/v1/models", "/metrics"),
        ("http://h:1/a/v1/", "/a/v1/models", "/a/metrics"),
        ("http://h:1/api/paas/v4", "/api/paas/v4/models", "/api/paas/metrics"),
        ("http://h:1/v1/chat/completions", "/v1/models", "/metrics"),
        ("http://h:1/v1/completions/", "/v1/models", "/metrics"),
        ("http://h:1/v1/models", "/v1/models", "/metrics"),
        ("http://h:1/a/metrics", "/a/v1/models", "/a/metrics"),
        ("http://h:1/api/v3/chat/completions", "/api/v3/models", "/api/metrics"),
        ("http://h:1/openai/chat/completions", "/openai/models", "/openai/metrics"),
        ("http://h:1/chat/completions", "/models", "/metrics"),
        ("http://h:1/v1/responses", "/v1/models", "/metrics"),
        ("http://h:1/api/v1/embeddings/", "/api/v1/models", "/api/metrics"),
        ("http://h:1/v1beta/chat/completions", "/v1beta/models", "/metrics"),
        (
            "http://h:1/v1beta/openai/chat/completions",
            "/v1beta/openai/models",
            "/v1beta/openai/metrics",
        ),
        ("http://[fe80::1%25eth0]:1/v1", "/v1/models", "/metrics"),
        (
            "http://h:1/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "/openai/deployments/d/models?api-version=2024-10-21",
            "/openai/deployments/d/metrics?api-version=2024-10-21",
        ),
        (
            "http://h:1/openai/v1/?api-version=preview",
            "/openai/v1/models?api-version=preview",
            "/openai/metrics?api-version=preview",
        ),
    ],
)
def test_pages_of_a_base_url(url: str, models: str, metrics: str) -> None:
    endpoint = Endpoint.parse(url)
    assert (endpoint.path("/v1/models"), endpoint.path("/metrics")) == (models, metrics)
    assert f" {endpoint.path('/v1/completions')} " in endpoint.post("/v1/completions", {}).decode()
    assert Endpoint.parse(endpoint.url) == endpoint


def test_an_ipv6_address_is_bracketed_where_it_is_written() -> None:
    endpoint = Endpoint.parse("http://[::1]:9")
    assert (endpoint.host, endpoint.url) == ("::1", "http://[::1]:9")
    assert endpoint.headers()["Host"] == "[::1]:9"
    assert Endpoint.parse("http://[fe80::1%25eth0]:9").headers()["Host"] == "[fe80::1]:9"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://h", "h"),
        ("https://h/v1", "h"),
        ("https://[::1]:443", "[::1]"),
        ("http://h:443", "h:443"),
        ("http://h:8080", "h:8080"),
    ],
)
def test_the_usual_port_is_not_in_the_name_of_a_host(url: str, host: str) -> None:
    assert Endpoint.parse(url).headers()["Host"] == host


def test_a_header_of_the_user_replaces_ours_whatever_its_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    monkeypatch.setenv("WHET_HTTP_HEADERS", '{"authorization": "Key two", "HOST": "api"}')
    headers = Endpoint.parse("http://h").headers()
    assert headers["authorization"] == "Key two"
    assert headers["HOST"] == "api"
    assert not {"Authorization", "Host"} & headers.keys()


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ('{"Content-Length": "5"}', "--header Content-Length: whet sets it"),
        ('{"transfer-encoding": "chunked"}', "whet sets it"),
        ('{"a b": "c"}', "printable ASCII only"),
        ('{"a:": "c"}', "printable ASCII only"),
        ('{"a": "b\\nc: d"}', "printable ASCII only"),
        ('["a"]', "not a JSON object"),
        ("{", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
    ],
)
def test_a_header_that_would_break_a_request_is_refused(
    headers: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_HTTP_HEADERS", headers)
    with pytest.raises(UsageError, match=said):
        Endpoint.parse("http://h")


def test_a_root_without_pages_names_the_way_to_give_another() -> None:
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope"
    with answering(lambda sent: [missing]) as (url, _):
        with pytest.raises(HttpError, match=r"/api/v1/models answered HTTP 404: nope; give .*v4"):
            get_text(f"{url}/api", "/v1/models")
        with pytest.raises(HttpError, match=r"/api/metrics answered HTTP 404: nope$"):
            get_text(f"{url}/api", "/metrics")
