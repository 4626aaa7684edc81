"""``whet quantize``: one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions
from whet.flow.quantize.options import QuantizeOptions


def quantize(
    model: Annotated[str, Parameter(help="16-bit checkpoint: folder or hub id.")],
    out: Annotated[Path, Parameter(help="Folder to write; absent or empty.")],
    /,
    *,
    options: QuantizeOptions = QuantizeOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Quantize a checkpoint (AWQ, GPTQ, FP8, INT8) for vLLM.

    The format is compressed-tensors.
    """
    from whet.flow.quantize.checkpoint import quantize_single

    with output.observer() as observer:
        return quantize_single(model, out, options, observer)
