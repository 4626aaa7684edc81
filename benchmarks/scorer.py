"""Load a checkpoint in this process in float32, with the rounding that its config asks for.

transformers passes a compressed-tensors checkpoint to that library, whose linears round their
inputs in every forward (dynamic by token, or on the stored scale) and whose attention rounds keys
and values on stored scales. ``dequantize`` unpacks the weights at load and leaves that in place.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import Tensor, nn

from whet.core.errors import CheckpointError, MeasurementError, UsageError
from whet.core.units import human_bytes

_FLOAT32_BYTES: Final = 4
_ROOM: Final = 1.1
"""Memory of a forward pass, as a multiple of the weights."""
_AGAIN: Final = "quantize it again, or download it again"
_HEAD_TOLERANCE: Final = 1e-4


class Scorer:
    """A model that returns hidden states at once and logits slice by slice."""

    def __init__(self, model: Any, path: Path) -> None:
        """Made by ``load_scorer``."""
        self._model = model
        self._path = path
        self._cap = getattr(model.config, "final_logit_softcapping", None)

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return int(self._model.get_output_embeddings().weight.shape[0])

    @property
    def rounded(self) -> tuple[str, ...]:
        """The values that the forward pass rounds: ``weights``, ``activations``, ``kv_cache``."""
        rounded: set[str] = set()
        for module in self._model.modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is None:
                continue
            inputs = scheme.input_activations is not None
            if isinstance(module, nn.Linear):
                rounded |= {"weights", "activations"} if inputs else {"weights"}
            elif inputs:
                rounded.add("kv_cache")
        return tuple(name for name in ("weights", "activations", "kv_cache") if name in rounded)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states [B, T, D] of ``ids`` [B, T], padded on the right."""
        states: Tensor = self._model.base_model(ids, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V] of ``hidden`` [N, D]."""
        logits: Tensor = self._model.get_output_embeddings()(hidden)
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    def check_head(self, ids: Tensor) -> None:
        """Raise ``MeasurementError`` unless the model itself gives these logits for [1, T] ids."""
        whole = self._model(ids, use_cache=False).logits[0]
        ours = self.logits(self.hidden(ids)[0])
        if not torch.allclose(
            whole, ours, rtol=_HEAD_TOLERANCE, atol=_HEAD_TOLERANCE, equal_nan=True
        ):
            raise MeasurementError(
                f"{self._path} changes its logits after the head in an unknown way; "
                "compare its schemes by task scores instead"
            )


def load_scorer(path: Path, device: torch.device) -> Scorer:
    """Load a 16-bit or compressed-tensors checkpoint folder in float32 onto ``device``.

    Raises ``CheckpointError`` if it cannot be loaded or lacks a tensor, which transformers would
    fill with random numbers.
    """
    from transformers import AutoModelForCausalLM

    options = _quantized_options(path)
    try:
        with _quietly():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} cannot be loaded ({reason}); {_AGAIN}") from error
    model, info = loaded
    if lacking := sorted({*info["missing_keys"], *map(str, info["mismatched_keys"])}):
        raise CheckpointError(f"{path} lacks {lacking[0]}, or has it in another shape; {_AGAIN}")
    # compressed-tensors unpacks 4-bit floats to bfloat16, whatever dtype was asked for.
    return Scorer(model.eval().float().to(device), path)


def _quantized_options(path: Path) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that unpack quantized weights."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} has no readable config.json; {_AGAIN}") from error
    quantization = config.get("quantization_config")
    if quantization is None:
        return {}
    method = quantization.get("quant_method")
    if method != "compressed-tensors":
        raise CheckpointError(
            f"{path} is stored as {method}; distances are measured on compressed-tensors and "
            "16-bit checkpoints"
        )
    from transformers import CompressedTensorsConfig

    return {"quantization_config": CompressedTensorsConfig(dequantize=True)}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence progress bars and reports of the libraries; their result is checked afterwards."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def pick_device(wanted: str | None, path: Path) -> torch.device:
    """Return the device where the model fits twice in float32: the GPU, else the CPU.

    If ``wanted`` is given, only it is tried. Raises ``UsageError`` for a device that does not exist
    and ``MeasurementError`` for too little memory.
    """
    cuda = torch.cuda.is_available()
    try:
        names = [wanted] if wanted else ["cuda", "cpu"] if cuda else ["cpu"]
        devices = [torch.device(name) for name in names]
    except RuntimeError as error:
        raise UsageError(f"there is no device {wanted!r}; use cpu or cuda") from error
    if devices[0].type == "cuda" and not cuda:
        raise UsageError(f"the device {wanted!r} is not available here; use cpu")
    needed = round(2 * _FLOAT32_BYTES * _parameters(path) * _ROOM)
    for device in devices:
        if needed <= free_bytes(device):
            return device
    raise MeasurementError(
        f"both models in float32 need {human_bytes(needed)}, and {devices[-1]} has "
        f"{human_bytes(free_bytes(devices[-1]))} free; free some memory or take a larger machine"
    )


def free_bytes(device: torch.device) -> int:
    """Return the free memory of ``device``."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _parameters(path: Path) -> int:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} has a config.json that transformers refuses") from error
    return sum(parameter.numel() for parameter in model.parameters())
