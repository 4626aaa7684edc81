"""``whet prompts``: what a request log's prompts could share, what they lose, and to what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from whet.cli import prompts_lint
from whet.cli.console import ConsoleObserver
from whet.core.errors import StorageError, UsageError

if TYPE_CHECKING:
    from whet.core.records import LoggedRequest
    from whet.flow.prompts import Served
    from whet.prefix.analyse import PromptQuestion

_ANALYSE: Final = "analyse"
_CACHE: Final = "The cache"
_FILES: Final = "Files"
_REPLAY: Final = "On a real server"


class _LogByDefault(TyperGroup):
    """A group whose first word may be a log instead of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command before a log."""
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = [_ANALYSE, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=_LogByDefault,
    no_args_is_help=True,
    help="What a request log's prompts could share in the prefix cache, what keeps them from it, "
    "and what mending it is worth: whet prompts LOG --model DIR.",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group.command(_ANALYSE)(analyse)
    group.command("lint")(prompts_lint.lint)
    app.add_typer(group, name="prompts")


def analyse(
    log: Annotated[
        Path,
        typer.Argument(
            help="Requests as JSON lines, OpenTelemetry GenAI spans, or a folder of prompts."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="Folder or hub id: its tokenizer and chat template are used.")
    ],
    served_model: Annotated[
        str | None, typer.Option(help="Of a log of several models, the one to look at.")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="The server's own, where it is not the model's.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Read no more than these.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="No text of any prompt in any output.")
    ] = False,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens a KV block; the run's, else 16.", rich_help_panel=_CACHE),
    ] = None,
    cache_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Size; planned for this machine.", rich_help_panel=_CACHE),
    ] = None,
    cache_gib: Annotated[
        float | None, typer.Option(min=0.001, help="The same in GiB.", rich_help_panel=_CACHE)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="A whet run: its cache size, block size and prefill speed.",
            rich_help_panel=_CACHE,
        ),
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Replay the first N requests, as they are and mended.",
            rich_help_panel=_REPLAY,
        ),
    ] = None,
    output_dir: Annotated[
        Path,
        typer.Option("-o", "--output-dir", help="For the report.", rich_help_panel=_FILES),
    ] = Path("prompts"),
    mended: Annotated[
        Path | None,
        typer.Option(help="The log with every proposal followed.", rich_help_panel=_FILES),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            help="The log's prefix structure without its text, for whet bench --trace.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    round_to: Annotated[
        int,
        typer.Option(
            "--round", min=1, help="Its lengths to a multiple of this.", rich_help_panel=_FILES
        ),
    ] = 1,
    mooncake: Annotated[
        Path | None,
        typer.Option(help="The same in Mooncake's form, coarser.", rich_help_panel=_FILES),
    ] = None,
) -> None:
    """Find what keeps prompts from sharing the prefix cache, and what mending it is worth."""
    from whet.flow.prompts import VerifyRequest, ask_prompts, read_served
    from whet.report import print_prompts, write_prompts

    if mooncake is not None and workload is None:
        raise UsageError("--mooncake is made from --workload; give both")
    served = None if run is None else read_served(run)
    question = _question(
        log=log, model=model, served_model=served_model, chat_template=chat_template,
        max_requests=max_requests, redact=redact, block_size=block_size,
        cache=(cache_tokens, cache_gib), served=served,
    )  # fmt: skip
    request = (
        VerifyRequest(requests=verify, log=output_dir / "replay.log", args={}) if verify else None
    )
    _make_folder(output_dir)
    with ConsoleObserver() as observer:
        found = ask_prompts(
            question, observer, verify=request, speed=served.speed if served else None
        )
        write_prompts(found, output_dir)
        print_prompts(found, observer.console)
        for path in _write_files(question, mended, workload, mooncake, round_to):
            observer.note(f"written: {path}")
        observer.console.print(f"\nReport: {output_dir / 'prompts.html'}", highlight=False)


def _question(
    *,
    log: Path,
    model: str,
    served_model: str | None,
    chat_template: Path | None,
    max_requests: int | None,
    redact: bool,
    block_size: int | None,
    cache: tuple[int | None, float | None],
    served: Served | None,
) -> PromptQuestion:
    from whet.checkpoint import locate
    from whet.flow.prompts import CacheSize, find_cache_blocks
    from whet.prefix.analyse import PromptQuestion

    block = block_size or (served.block_size if served else None) or 16
    size = CacheSize(tokens=cache[0], gib=cache[1], served=served)
    return PromptQuestion(
        log=log,
        target=model,
        block_size=block,
        cache_blocks=find_cache_blocks(size, target=locate(model), block_size=block),
        model=served_model,
        max_requests=max_requests,
        chat_template=chat_template,
        redacted=redact,
    )


def _write_files(
    question: PromptQuestion,
    mended: Path | None,
    workload: Path | None,
    mooncake: Path | None,
    round_to: int,
) -> Iterator[Path]:
    from whet.core.prefix_trace import read_prefix_trace
    from whet.prefix.analyse import mended_log, tokenized_log
    from whet.prefix.anonymise import write_mooncake, write_prefix_trace

    if mended is not None:
        _write_log(mended, mended_log(question))
        yield mended
    if workload is not None:
        write_prefix_trace(tokenized_log(question), workload, round_to=round_to)
        yield workload
    if workload is not None and mooncake is not None:
        write_mooncake(read_prefix_trace(workload), mooncake)
        yield mooncake


def _write_log(path: Path, requests: Iterable[LoggedRequest]) -> None:
    """One OpenAI request a line, with its time."""
    from whet.prefix.log_lines import request_line

    try:
        with path.open("w", encoding="utf-8") as file:
            for request in requests:
                file.write(json.dumps(request_line(request), ensure_ascii=False) + "\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error}); give another place") from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be made ({error}); give another folder with --output-dir"
        ) from error
