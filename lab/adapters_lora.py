"""LoRA on the demo's Llama (arXiv 2106.09685): attach, merge, and PEFT's files.

``y = W x + (alpha / r) B A x`` with A [r, in] and B [out, r]; W stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.model import Llama
from whet.core.errors import CheckpointError

RANK: Final = 8
ALPHA: Final = 16
MODULES: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHTS_FILE: Final = "adapter_model.safetensors"
CONFIG_FILE: Final = "adapter_config.json"
_PREFIX: Final = "base_model.model."


class LoraLinear(nn.Module):
    """A frozen linear layer beside a trained product of rank ``rank``; it starts as the layer."""

    def __init__(self, base: nn.Linear, rank: int, alpha: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        out: Tensor = self.base(x) + self.lora_B(self.scale * self.lora_A(x))
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The linear layer with the product added to its weight."""
        self.base.weight += self.scale * self.lora_B.weight @ self.lora_A.weight
        return self.base


def attach(model: Llama, *, rank: int = RANK, alpha: int = ALPHA) -> None:
    """Freeze ``model`` and put an adapter that does nothing yet on every projection, in place."""
    model.requires_grad_(False)
    for parent, name, layer in list(_projections(model)):
        if isinstance(layer, nn.Linear):
            setattr(parent, name, LoraLinear(layer, rank, alpha))


def merge(model: Llama) -> None:
    """Fold the attached adapter into the weights, in place."""
    for parent, name, layer in list(_projections(model)):
        if isinstance(layer, LoraLinear):
            setattr(parent, name, layer.merged())


def save_adapter(model: Llama, folder: Path, *, rank: int = RANK, alpha: int = ALPHA) -> None:
    """Write the attached adapter as PEFT has it, in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        _PREFIX + name: value.detach().to("cpu", torch.float16).contiguous()
        for name, value in model.state_dict().items()
        if "lora_" in name
    }
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "whet/demo/pair/target",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": list(MODULES),
        "use_dora": False,
        "use_rslora": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")


def load_adapter(model: Llama, folder: Path) -> None:
    """Attach the adapter of ``folder`` to its bare target, in float32.

    ``CheckpointError`` where the stored names are not those of the target's projections.
    """
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    attach(model, rank=config["r"], alpha=config["lora_alpha"])
    stored = load_file(folder / WEIGHTS_FILE)
    weights = {name.removeprefix(_PREFIX): value.float() for name, value in stored.items()}
    missing = model.load_state_dict(weights, strict=False)
    unfilled = [name for name in missing.missing_keys if "lora_" in name]
    if unfilled or missing.unexpected_keys:
        name = (unfilled + missing.unexpected_keys)[0]
        raise CheckpointError(
            f"{folder / WEIGHTS_FILE} does not fit this target at {name}; build it for this target "
            "with python -m lab.adapters_train"
        )


def _projections(model: Llama) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Every projection with its parent and its name in it."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if name in MODULES:
                yield parent, name, layer
