"""``whet bench``: a load against any OpenAI-compatible server, in vLLM's words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from whet.cli.against import Against, AgainstFlags, AgainstModel, run_against
from whet.cli.bench_flags import (
    SourceFlags,
    given_flags,
    is_given,
    length_of,
    read_arrivals,
    read_selection,
    read_source,
    refuse_misfits,
    requests_of,
    speed_of,
)
from whet.cli.bench_result import print_result, save_result_files
from whet.cli.console import ConsoleObserver
from whet.cli.search import FIND_SECONDS, FindSeconds, SearchFlags, run_search
from whet.core.errors import Interrupted, UsageError
from whet.core.server_url import split_server_url

_LOAD: Final = "Load"
_PROMPTS: Final = "Synthetic prompts"
_SOURCE: Final = "Other sources"
_RESULT: Final = "Result"
_SEARCH: Final = "Search"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(help="http://host:port", metavar="URL")],
    model: Annotated[
        str | None, typer.Option(help="Its name there; the only one if left out.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id; where the server's model lies by default.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="The server's key. Default: the variable OPENAI_API_KEY.")
    ] = None,
    form: Annotated[str, typer.Option(help="ids or text (completions endpoint), or chat.")] = "ids",
    request_rate: Annotated[
        float | None,
        typer.Option(
            help="Requests a second, open loop; inf sends all at once.", rich_help_panel=_LOAD
        ),
    ] = None,
    burstiness: Annotated[
        float, typer.Option(help="1.0 is Poisson, below it bursty.", rich_help_panel=_LOAD)
    ] = 1.0,
    constant: Annotated[
        bool,
        typer.Option("--constant", help="Equal gaps at --request-rate.", rich_help_panel=_LOAD),
    ] = False,
    ramp_up_end_rps: Annotated[
        float | None,
        typer.Option(help="Ramp from --request-rate to this over --ramp-s.", rich_help_panel=_LOAD),
    ] = None,
    ramp_s: Annotated[
        float, typer.Option(help="Seconds of the ramp.", rich_help_panel=_LOAD)
    ] = 60.0,
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            "--max-concurrency",
            "--concurrency",
            min=1,
            help="In flight: the closed loop's size, or an open loop's cap.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    static_batches: Annotated[
        bool,
        typer.Option(
            "--static-batches", help="Each batch waits for its slowest.", rich_help_panel=_LOAD
        ),
    ] = False,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests of a run.",
            show_default="200, or a whole trace",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    num_warmups: Annotated[
        int, typer.Option(min=0, help="Requests sent before.", rich_help_panel=_LOAD)
    ] = 20,
    num_runs: Annotated[
        int, typer.Option(min=1, help="Runs, each with fresh prompts.", rich_help_panel=_LOAD)
    ] = 1,
    until: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="More runs until tokens/s is known to ± this many %.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    max_runs: Annotated[
        int, typer.Option(min=1, help="Where --until ends.", rich_help_panel=_LOAD)
    ] = 10,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, help="For one request.", rich_help_panel=_LOAD)
    ] = 600.0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that send; as many as the warm-up shows to be needed by default.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    input_len: Annotated[
        int | None,
        typer.Option(
            "--random-input-len",
            "--input-len",
            "--isl",
            min=1,
            help="Input tokens per request, after any shared prefix.",
            show_default="512",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option(
            "--random-output-len",
            "--output-len",
            "--osl",
            min=1,
            help="Output tokens per request. Overrides a dataset's own lengths.",
            show_default="128, or the source's own lengths",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    random_range_ratio: Annotated[
        float,
        typer.Option(
            help="Lengths are uniform within ± this share of the input and output length.",
            rich_help_panel=_PROMPTS,
        ),
    ] = 0.0,
    prefixes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of shared prefixes.",
            show_default="1 with --prefix-len, else 0",
            rich_help_panel=_PROMPTS,
        ),
    ] = 0,
    prefix_len: Annotated[
        int,
        typer.Option(
            "--random-prefix-len",
            "--prefix-len",
            min=1,
            help="Tokens of each shared prefix.",
            rich_help_panel=_PROMPTS,
        ),
    ] = 256,
    prefix_zipf: Annotated[
        float, typer.Option(help="Zipf exponent of their use; 0 is even.", rich_help_panel=_PROMPTS)
    ] = 0.0,
    prefix_share: Annotated[
        float, typer.Option(help="Requests that begin with one.", rich_help_panel=_PROMPTS)
    ] = 1.0,
    dataset_path: Annotated[
        Path | None,
        typer.Option(
            help="JSONL with conversations (ShareGPT), messages or prompt.",
            rich_help_panel=_SOURCE,
        ),
    ] = None,
    dataset_name: Annotated[
        str | None,
        typer.Option(
            help="vLLM's word: random, custom, or sharegpt, which leaves out the rows that vLLM "
            "does.",
            rich_help_panel=_SOURCE,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Azure or BurstGPT CSV, Mooncake JSONL, a log of requests, or what whet prompts "
            "--workload wrote, at its own times.",
            rich_help_panel=_SOURCE,
        ),
    ] = None,
    trace_speed: Annotated[
        float, typer.Option(help="2 plays it twice as fast.", rich_help_panel=_SOURCE)
    ] = 1.0,
    trace_duration: Annotated[
        float | None,
        typer.Option(help="Only the trace's first seconds.", rich_help_panel=_SOURCE),
    ] = None,
    conversations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Chats of several turns, --concurrency at once; --input-len is the first prompt.",
            rich_help_panel=_SOURCE,
        ),
    ] = None,
    turns: Annotated[
        int, typer.Option(help="Turns of each conversation.", rich_help_panel=_SOURCE)
    ] = 4,
    turn_len: Annotated[
        int, typer.Option(min=1, help="Tokens that each later turn adds.", rich_help_panel=_SOURCE)
    ] = 64,
    think_s: Annotated[
        float, typer.Option(help="Pause before each later turn.", rich_help_panel=_SOURCE)
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and arrivals.")] = 0,
    goodput: Annotated[
        str | None,
        typer.Option(
            help='What each request must keep: "ttft:200 tpot:50 e2el:5000" in ms.',
            rich_help_panel=_RESULT,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            "--slo",
            help='"ttft:p95<300ms;tpot:p95<50ms;error<1%".',
            rich_help_panel=_RESULT,
        ),
    ] = None,
    find_max: Annotated[
        str | None,
        typer.Option(
            help="Search the highest rate or concurrency that keeps --slo or --goodput.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    find_start: Annotated[
        float | None, typer.Option(min=0.01, help="Where it begins.", rich_help_panel=_SEARCH)
    ] = None,
    find_limit: Annotated[
        float | None, typer.Option(min=0.01, help="Where it ends.", rich_help_panel=_SEARCH)
    ] = None,
    find_budget: Annotated[
        int, typer.Option(min=1, help="Measurements at most.", rich_help_panel=_SEARCH)
    ] = 20,
    find_seconds: FindSeconds = FIND_SECONDS,
    goodput_share: Annotated[
        float,
        typer.Option(help="Of requests that must keep --goodput.", rich_help_panel=_SEARCH),
    ] = 0.9,
    against: Against = None,
    against_model: AgainstModel = None,
    percentile_metrics: Annotated[
        str, typer.Option(help="Of ttft, tpot, itl, e2el.", rich_help_panel=_RESULT)
    ] = "ttft,tpot,itl,e2el",
    metric_percentiles: Annotated[
        str, typer.Option(help="Such as 90,95,99.", rich_help_panel=_RESULT)
    ] = "90,95,99",
    save_result: Annotated[
        bool,
        typer.Option(
            "--save-result", help="Write vLLM's JSON and a picture.", rich_help_panel=_RESULT
        ),
    ] = False,
    result_dir: Annotated[
        Path, typer.Option("--result-dir", "-o", help="Where.", rich_help_panel=_RESULT)
    ] = Path(),
    result_filename: Annotated[
        str, typer.Option(help="Its name.", rich_help_panel=_RESULT)
    ] = "bench.json",
) -> None:
    """Send a load to a server that is running, and say what can be believed of it.

    Exit code 6 where nothing can: the client did not keep up, or no request was answered.
    """
    from whet.flow.bench.request import INPUT_LENGTHS, OUTPUT_LENGTHS
    from whet.flow.bench.run import FORMS, BenchRequest, require_figures
    from whet.flow.bench.run import bench as send
    from whet.load.synthetic import SharedPrefixes
    from whet.metrics.objective import parse_goodput, parse_objective

    if form not in FORMS:
        raise UsageError(f"--form {form!r}: choose one of {', '.join(FORMS)}")
    flags = SourceFlags(
        given=given_flags(ctx),
        dataset_path=dataset_path,
        dataset_name=dataset_name,
        trace=trace,
        trace_duration_s=trace_duration,
        conversations=conversations,
        turns=turns,
        turn_len=turn_len,
        think_s=think_s,
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        seed=seed,
    )
    refuse_misfits(flags.given, flags.kind)
    prefixes = prefixes or int("prefix_len" in flags.given)
    ramp = None if ramp_up_end_rps is None else (ramp_up_end_rps, ramp_s)
    bounds = None if goodput is None else parse_goodput([goodput])
    constraints = None if objective is None else parse_objective(objective)
    selection = read_selection(percentile_metrics, metric_percentiles)
    source = read_source(flags)
    arrivals = read_arrivals(
        request_rate,
        burstiness,
        ramp,
        constant=constant,
        trace_speed=speed_of(flags, source, trace_speed),
    )
    if api_key is not None:  # every request reads the variable, and redaction does too
        os.environ["OPENAI_API_KEY"] = api_key
    split_server_url(url, "URL")
    if against is not None:
        split_server_url(against, "--against")
    request = BenchRequest(
        url=url,
        model=model,
        tokenizer=tokenizer,
        form=form,
        requests=requests_of(flags, source),
        inputs=length_of(input_len, INPUT_LENGTHS, random_range_ratio),
        outputs=length_of(output_len, OUTPUT_LENGTHS, random_range_ratio),
        prefixes=SharedPrefixes(
            count=prefixes, tokens=prefix_len, zipf_exponent=prefix_zipf, share=prefix_share
        )
        if prefixes
        else None,
        source=source,
        arrivals=arrivals,
        concurrency=max_concurrency or (0 if arrivals is not None else 1),
        static=static_batches,
        warmup=num_warmups,
        runs=num_runs,
        until=None if until is None else until / 100,
        most_runs=max_runs,
        seed=seed,
        timeout_s=timeout_s,
        workers=workers,
    )
    path = result_dir / result_filename if save_result else None
    if find_max is not None:
        run_search(
            request,
            SearchFlags(
                axis=find_max,
                constraints=constraints or (),
                bounds=bounds,
                share=goodput_share,
                start=find_start,
                limit=find_limit,
                budget=find_budget,
                seconds=find_seconds,
                path=path,
            ),
        )
        return
    if against is not None:
        run_against(
            request,
            AgainstFlags(
                url=against,
                model=against_model,
                runs=num_runs if is_given(ctx, "num_runs") else None,
                asked=(selection, bounds, constraints),
                path=path,
            ),
        )
        return
    with ConsoleObserver() as observer:
        result = send(request, observer)
        print_result(result, request, (selection, bounds, constraints), observer)
        if path is not None:
            save_result_files(result, request, (selection, bounds), path, observer)
    if result.interrupted:
        raise Interrupted("stopped on request")
    require_figures(result)
