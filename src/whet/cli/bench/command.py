"""``whet bench``: a load against any OpenAI-compatible server, in vLLM's words."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from whet.cli.bench.compare import run_comparison
from whet.cli.bench.output import read_view, report_bench
from whet.cli.bench.saturation import run_search
from whet.cli.options import OutputOptions
from whet.core.errors import Interrupted
from whet.core.server_url import split_server_url
from whet.flow.bench.options import BenchOptions


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
    from whet.flow.bench.run import bench as send
    from whet.flow.bench.run import require_figures

    view = read_view(options.result)
    if options.compare.against is not None:
        split_server_url(options.compare.against, "--against")
    request = build_request(url, options)
    if options.search.find_max is not None:
        run_search(request, options.search, view, output)
        return
    if options.compare.against is not None:
        run_comparison(request, options, view, output)
        return
    with output.observer() as observer:
        result = send(request, observer)
        report_bench(result, request, view, output)
    if result.interrupted:
        raise Interrupted("stopped on request")
    require_figures(result)
