"""``whet quantize``: one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.records.codec import encode
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
        done = quantize_single(model, out, options, observer)
    if output.json:
        print_json(encode(done))
    output.result(out)
    return done
