"""``whet quantize``: one checkpoint, or every scheme of a model in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.compare import run_comparison
from whet.cli.console import ConsoleObserver
from whet.cli.recipe import calibration_of, recipe_of, refuse
from whet.core.errors import UsageError

_RECIPE, _TEXT, _AFTER, _COMPARE = "Recipe", "Calibration", "Afterwards", "Comparison"

Method = Annotated[
    str | None,
    typer.Option(
        help="awq, gptq, awq+gptq or rtn; smoothquant for W8A8. By default the scheme's usual one.",
        rich_help_panel=_RECIPE,
    ),
]
Scheme = Annotated[
    str | None,
    typer.Option(
        help="W4A16 (the default), W4A16_ASYM, W8A16, W8A8, FP8_DYNAMIC or FP8.",
        rich_help_panel=_RECIPE,
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        help="Columns that share a scale: 32, 64 or 128 (the default).", rich_help_panel=_RECIPE
    ),
]
NoClip = Annotated[
    bool,
    typer.Option(
        "--no-clip", help="Leave out AWQ's search for narrower ranges.", rich_help_panel=_RECIPE
    ),
]
KvCache = Annotated[
    str | None,
    typer.Option(help="fp8: also store scales of keys and values.", rich_help_panel=_RECIPE),
]
MixedKeep = Annotated[
    str | None,
    typer.Option(
        help="What the most sensitive units keep: 16bit (the default), W8A16, W8A8, FP8_DYNAMIC.",
        rich_help_panel=_RECIPE,
    ),
]
BitsPerWeight = Annotated[
    float | None,
    typer.Option(help="Mixed: the average that the budget allows.", rich_help_panel=_RECIPE),
]
MaxError = Annotated[
    float | None,
    typer.Option(help="Mixed: the relative output error of any unit.", rich_help_panel=_RECIPE),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1; the first GPU if there is one.")
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        help="JSONL (a request log, messages, prompt or text) or .txt; built-in by default.",
        rich_help_panel=_TEXT,
    ),
]
Samples = Annotated[int, typer.Option(help="Calibration samples.", rich_help_panel=_TEXT)]
MaxTokens = Annotated[
    int, typer.Option(help="Tokens of each sample, at most.", rich_help_panel=_TEXT)
]
Seed = Annotated[int, typer.Option(help="Which samples are drawn.", rich_help_panel=_TEXT)]
ServeCheck = Annotated[
    bool | None,
    typer.Option(
        "--serve-check/--no-serve-check",
        help="Ask the installed engine for one completion and say which kernel ran; on by default.",
        rich_help_panel=_AFTER,
    ),
]
PushToHub = Annotated[
    str | None,
    typer.Option(
        metavar="REPO",
        help="Upload to owner/name on the hub, a private repository without --public.",
        rich_help_panel=_AFTER,
    ),
]
Public = Annotated[
    bool,
    typer.Option("--public", help="Create or use a public repository.", rich_help_panel=_AFTER),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Make, measure and serve every scheme, each in a folder below OUT, and write one "
        "table; the same command goes on where a stopped one left off.",
        rich_help_panel=_COMPARE,
    ),
]
Schemes = Annotated[
    str | None,
    typer.Option(help="Only these, such as w4a16-awq,w8a8.", rich_help_panel=_COMPARE),
]
NoTasks = Annotated[
    bool,
    typer.Option(
        "--no-tasks", help="Start no server: no task scores, no kernels.", rich_help_panel=_COMPARE
    ),
]
Heldout = Annotated[
    Path | None,
    typer.Option(help="Held-out text (JSONL); built-in by default.", rich_help_panel=_COMPARE),
]
TasksFile = Annotated[
    Path | None,
    typer.Option(help="Tasks (JSONL); built-in by default.", rich_help_panel=_COMPARE),
]
MaxDocuments = Annotated[
    int | None, typer.Option(help="Held-out documents, 100 by default.", rich_help_panel=_COMPARE)
]
MaxTasks = Annotated[
    int | None, typer.Option(help="Tasks, 120 by default.", rich_help_panel=_COMPARE)
]
MaxDocumentTokens = Annotated[
    int | None,
    typer.Option(help="Tokens of a document, 512 by default.", rich_help_panel=_COMPARE),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quantize")(quantize)


def quantize(
    model: Annotated[str, typer.Argument(help="The 16-bit checkpoint: a folder or a hub id.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    method: Method = None,
    scheme: Scheme = None,
    group_size: GroupSize = None,
    no_clip: NoClip = False,
    kv_cache: KvCache = None,
    mixed_keep: MixedKeep = None,
    bits_per_weight: BitsPerWeight = None,
    max_error: MaxError = None,
    device: Device = None,
    calibration: Calibration = None,
    samples: Samples = 512,
    max_tokens: MaxTokens = 512,
    seed: Seed = 0,
    serve_check: ServeCheck = None,
    push_to_hub: PushToHub = None,
    public: Public = False,
    compare: Compare = False,
    schemes: Schemes = None,
    no_tasks: NoTasks = False,
    heldout: Heldout = None,
    tasks_file: TasksFile = None,
    max_documents: MaxDocuments = None,
    max_tasks: MaxTasks = None,
    max_document_tokens: MaxDocumentTokens = None,
) -> None:
    """Write a checkpoint of fewer bits in the compressed-tensors format that vLLM serves.

    bitsandbytes NF4 is made when an engine loads 16-bit weights, and GGUF is another engine's
    format: whet writes neither. Serve them as variants of a spec (args: {quantization:
    bitsandbytes}, and GGUF likewise) where the installed engine has them: in vLLM they are plug-ins
    since 0.28 and 0.24.
    """
    from whet.flow.quantize.checkpoint import SingleRequest, quantize_single
    from whet.flow.quantize.hub import require_login
    from whet.flow.quantize.publish import push

    recipe_flags = {
        "--method": method,
        "--scheme": scheme,
        "--group-size": group_size,
        "--no-clip": no_clip or None,
        "--kv-cache": kv_cache,
        "--mixed-keep": mixed_keep,
        "--bits-per-weight": bits_per_weight,
        "--max-error": max_error,
    }
    compare_flags = {
        "--schemes": schemes,
        "--no-tasks": no_tasks or None,
        "--heldout": heldout,
        "--tasks-file": tasks_file,
        "--max-documents": max_documents,
        "--max-tasks": max_tasks,
        "--max-document-tokens": max_document_tokens,
    }
    after = {
        "--serve-check": serve_check,
        "--push-to-hub": push_to_hub,
        "--public": public or None,
    }
    text = calibration_of(calibration, samples=samples, max_tokens=max_tokens, seed=seed)
    if compare:
        refuse(recipe_flags | after, "has no meaning with --compare, which makes every scheme")
        run_comparison(model, out, compare_flags, text, device=device)
        return
    refuse(compare_flags, "belongs to --compare; add that, or leave this out")
    if public and push_to_hub is None:
        raise UsageError("--public says how to upload; add --push-to-hub REPO")
    request = SingleRequest(
        model=model,
        out=out,
        recipe=recipe_of(recipe_flags, text),
        device=device,
        serve_check=serve_check is not False,
    )
    if push_to_hub is not None:
        require_login(push_to_hub)
    with ConsoleObserver() as observer:
        quantize_single(request, observer)
        if push_to_hub is not None:
            url = push(out, push_to_hub, public=public, observer=observer, base=model)
            observer.note(url)
