"""The model's own perplexity on two small samples of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional

from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError

_CPU_PARAMETERS: Final = 200_000_000  # half a minute for both samples on two cores
_GPU_SHARE: Final = 0.6  # of the free memory, weights in float32
_SAMPLE_TOKENS: Final = 4096
_DOCUMENT_TOKENS: Final = 512


def model_perplexities(
    folder: Path, *texts: Sequence[Sequence[int]], device: str | None = None
) -> tuple[float, ...] | None:
    """Perplexity of the checkpoint in ``folder`` on each set of token ids, in float32.

    About 4096 tokens of each set are read, from documents spread evenly over it, 512 of a
    document at most; the first token of each is given. None where the model is too large: beyond
    200 million parameters on a CPU, or 0.6 of a GPU's free memory. ``device`` is ``cpu`` or
    ``cuda``, by default the GPU if there is one. ``CheckpointError`` where it cannot be loaded.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if not _fits(read_facts(folder).parameters, where):
        return None
    model = _load(folder).to(where).eval()
    try:
        return tuple(_perplexity(model, _sample(text), where) for text in texts)
    finally:
        del model
        if where.type == "cuda":
            torch.cuda.empty_cache()  # else the cache would keep it from whoever comes next


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with _quiet():
            return AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True
            )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{folder} cannot be loaded ({reason}); download the checkpoint again"
        ) from error


def _fits(parameters: int, where: torch.device) -> bool:
    if where.type == "cpu":
        return parameters <= _CPU_PARAMETERS
    return parameters * 4 <= _GPU_SHARE * torch.cuda.mem_get_info(where)[0]


def _sample(documents: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Documents spread over the set, as many as fill the sample when each is cut."""
    usable = [ids[:_DOCUMENT_TOKENS] for ids in documents if len(ids) > 1]
    mean = sum(map(len, usable)) / max(len(usable), 1)
    wanted = min(len(usable), max(1, math.ceil(_SAMPLE_TOKENS / max(mean, 1))))
    return [usable[index * len(usable) // wanted] for index in range(wanted)]


@torch.inference_mode()
def _perplexity(model: Any, documents: Sequence[Sequence[int]], where: torch.device) -> float:
    total, count = 0.0, 0
    for ids in documents:
        row = torch.tensor([list(ids)], device=where)
        logits = model(input_ids=row, use_cache=False).logits[0, :-1].float()
        total += float(functional.cross_entropy(logits, row[0, 1:], reduction="sum"))
        count += len(ids) - 1
    return math.exp(min(total / count, 700.0)) if count else math.nan


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading draws a bar of its own, which would tear the console's."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
