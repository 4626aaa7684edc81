"""The addresses that people give, and where their pages are."""

from __future__ import annotations

import pytest

from tests.client.raw_server import answering
from whet.client import Endpoint, HttpError, get_text


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


def test_a_root_without_pages_names_the_way_to_give_another() -> None:
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope"
    with answering(lambda sent: [missing]) as (url, _):
        with pytest.raises(HttpError, match=r"/api/v1/models answered HTTP 404: nope; give .*v4"):
            get_text(f"{url}/api", "/v1/models")
        with pytest.raises(HttpError, match=r"/api/metrics answered HTTP 404: nope$"):
            get_text(f"{url}/api", "/metrics")
