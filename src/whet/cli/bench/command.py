"""``whet bench``: a load against any OpenAI-compatible server, in vLLM's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from whet.cli.bench.output import (
    ResultView,
    bench_report,
    compare_report,
    read_view,
    search_report,
)
from whet.cli.options import OutputOptions
from whet.core.errors import Interrupted, WhetError
from whet.core.server_url import split_server_url
from whet.flow.bench.options import BenchOptions

if TYPE_CHECKING:
    from whet.flow.bench.run import BenchRequest


def bench(
    url: Annotated[str | None, Parameter(help="Server address, such as http://host:port.")] = None,
    /,
    *,
    options: BenchOptions = BenchOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Load-test a running server.

    Exit code 6 if no figure can be trusted: the client did not keep up, or no request was answered.
    """
    from whet.flow.bench.build import build_request

    view = read_view(options.result)
    if options.compare.against is not None:
        split_server_url(options.compare.against, "--against")
    request = build_request(url, options)
    if options.search.find_max is not None:
        _search(request, options, view, output)
    elif options.compare.against is not None:
        _compare(request, options, view, output)
    else:
        _send(request, view, output)


def _send(request: BenchRequest, view: ResultView, output: OutputOptions) -> None:
    from whet.flow.bench.run import bench as send
    from whet.flow.bench.run import require_figures

    with output.observer() as observer:
        result = send(request, observer)
        bench_report(result, request, view).show(view, output)
    if result.interrupted:
        raise Interrupted("stopped on request")
    require_figures(result)


def _compare(
    request: BenchRequest, options: BenchOptions, view: ResultView, output: OutputOptions
) -> None:
    """Measure both; what ended early still reports the pairs that it has."""
    from whet.flow.bench.compare import bench_against, require_comparison

    with output.observer() as observer:
        result = bench_against(request, options.compare, observer)
        compare_report(result, request, view).show(view, output)
    _raise(result.error)
    require_comparison(result)


def _search(
    request: BenchRequest, options: BenchOptions, view: ResultView, output: OutputOptions
) -> None:
    """Search; what ended early still reports the levels that it has."""
    from whet.flow.bench.saturation import find_max

    with output.observer() as observer:
        result = find_max(request, options.search, view.constraints, view.bounds, observer)
        search_report(result, view).show(view, output)
    _raise(result.error)


def _raise(error: WhetError | None) -> None:
    if error is not None:
        raise error
