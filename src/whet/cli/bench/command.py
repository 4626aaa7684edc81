"""``whet bench``: a load against any OpenAI-compatible server, in vLLM's words."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from whet.cli.bench.output import (
    bench_report,
    compare_report,
    read_view,
    search_report,
)
from whet.cli.options import OutputOptions
from whet.core.errors import Interrupted, WhetError
from whet.core.server_url import split_server_url
from whet.flow.bench.options import BenchOptions


def bench(
    url: Annotated[
        str | None,
        Parameter(name="--url", help="Server address, such as http://host:port."),
    ] = None,
    *,
    options: BenchOptions = BenchOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Load-test a running server.

    Exit code 6 if no figure can be trusted: the client did not keep up, or no request was answered.
    """
    from whet.flow.bench.build import build_request
    from whet.flow.bench.compare import bench_against, require_comparison
    from whet.flow.bench.run import bench as send
    from whet.flow.bench.run import require_figures
    from whet.flow.bench.saturation import find_max

    view, search = read_view(options.result), options.search
    if options.compare.against is not None:
        split_server_url(options.compare.against, "--against")
    request = build_request(url, options)
    with output.observer() as observer:
        if search.find_max is not None:
            saturation = find_max(request, search, view.constraints, view.bounds, observer)
            search_report(saturation, view).show(view, output)
            _raise(saturation.error)
            return saturation
        if options.compare.against is not None:
            compared = bench_against(request, options.compare, observer)
            compare_report(compared, view).show(view, output)
            _raise(compared.error)
            require_comparison(compared)
            return compared
        result = send(request, observer)
        bench_report(result, view).show(view, output)
        _raise(Interrupted("stopped on request") if result.interrupted else None)
        return require_figures(result)


def _raise(error: WhetError | None) -> None:
    if error is not None:
        raise error
