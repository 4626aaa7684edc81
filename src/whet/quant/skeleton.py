"""A model of transformers without weights; one decoder layer at a time is given its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from whet.core.errors import QuantizationError
from whet.quant import experts

_FAULTS: Final = (ValueError, TypeError, KeyError, AttributeError, ImportError)


class Skeleton:
    """The model of a checkpoint folder on the meta device, and its text decoder.

    Names and forms of the checkpoint's tensors are brought to the model's by transformers itself:
    prefixes of multimodal models, experts in one tensor.
    """

    def __init__(self, source: Path, dtype: torch.dtype | None) -> None:
        """Build it with ``dtype``, by default the config's; no code of the checkpoint is run."""
        import transformers
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it shows one for every layer
        experts.register()
        try:
            config = AutoConfig.from_pretrained(
                source, local_files_only=True, trust_remote_code=False
            )
            text = config.get_text_config()
            self.dtype: torch.dtype = dtype or text.dtype or config.dtype or torch.bfloat16
            names = config.architectures or [""]
            kind = getattr(transformers, names[0], None)
            # Only eager attention computes soft-capped scores (Gemma 2).
            capped = getattr(text, "attn_logit_softcapping", None)
            build = AutoModelForCausalLM.from_config if kind is None else kind._from_config
            with torch.device("meta"):
                self._model: Any = build(
                    config,
                    attn_implementation="eager" if capped else "sdpa",
                    experts_implementation=experts.NAME,
                    dtype=self.dtype,
                )
            self.decoder: Any = self._model.get_decoder()
            self._mapping = get_model_conversion_mapping(self._model)
            _ = self.decoder.layers, self.decoder.rotary_emb, self.decoder.embed_tokens
        except _FAULTS as error:
            raise QuantizationError(
                f"transformers builds no decoder of {source} whose layers can be measured "
                f"({type(error).__name__}: {error})",
                fix="round to nearest instead (--method rtn)",
            ) from error

    def load(
        self, tensors: Mapping[str, Tensor], layer: nn.Module, device: torch.device
    ) -> str | None:
        """Give ``layer`` the ``tensors`` by their full names; the first of its own that is missing.

        Tensors that the layer does not have are left out.
        """
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        config = LoadStateDictConfig(
            dtype=self.dtype,
            device_map={"": device},
            weight_mapping=self._mapping,  # type: ignore[arg-type]
        )
        convert_and_load_state_dict_in_model(self._model, dict(tensors), config)
        return next((name for name, each in layer.state_dict().items() if each.is_meta), None)
