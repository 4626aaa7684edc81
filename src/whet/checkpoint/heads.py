"""Heads and drafts: their method and shape, and whether they fit a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json
from whet.checkpoint.headers import read_headers
from whet.checkpoint.tokenizer import tokenizer_difference
from whet.core.errors import CheckpointError
from whet.core.records.model import ModelFacts

PARALLEL: Final = "parallel_drafting"
_BY_NAME: Final = {
    "peagle": "eagle3", "eagle3": "eagle3", "dflash": "dflash", "lilicorr": "dflash",
    "museglimmerassistant": "dflash", "dspark": "dspark", "medusa": "medusa", "eagle": "eagle",
    "mtp": "mtp", "gemma4_assistant": "mtp", "gemma4_unified_assistant": "mtp",
}  # fmt: skip
"""Parts of an architecture's name, in the order in which vLLM reads them → method."""
_ALL_AT_ONCE: Final = ("pard_token", "ptd_token_id")
"""Keys of a head or draft that proposes all tokens in one pass; other methods always do."""
_OWN_WIDTH: Final = ("draft_model", "mtp")
"""Methods of whole models, whose hidden size is not the target's."""
_LAYER_KEYS: Final = (
    "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFacts:
    """A head's method in vLLM with its options, and what it says of the model it was made for.

    ``layers`` is the number of that model's layers, ``inputs`` those whose states it reads,
    ``num_tokens`` the K that it was trained for. None and empty where it does not say.
    """

    folder: Path
    method: str
    options: Mapping[str, object]
    num_tokens: int | None
    hidden_size: int | None
    vocab_size: int | None
    layers: int | None
    inputs: tuple[int, ...]


def read_head(folder: Path) -> HeadFacts:
    """Return the facts of the head or draft in ``folder``; no tensor is loaded.

    Raises ``CheckpointError`` where its files cannot be read.
    """
    outer = read_json(folder / "config.json")
    headers = read_headers(folder)
    inner = outer.get("transformer_layer_config", outer.get("text_config"))
    config = {**inner, **outer} if isinstance(inner, dict) else outer
    method, parallel = _method(config)
    if method is None:  # a head of EAGLE's first version has its target's architecture
        method = "eagle" if "fc.weight" in headers else "draft_model"
    flash = config.get("dflash_config")
    keys = {**flash, **config} if isinstance(flash, dict) else config
    layers = next((keys[key] for key in _LAYER_KEYS if isinstance(keys.get(key), list)), ())
    return HeadFacts(
        folder=folder,
        method=method,
        options={PARALLEL: True} if parallel else {},
        num_tokens=_trained_tokens(config),
        hidden_size=_whole(config, "target_hidden_size", "hidden_size"),
        vocab_size=_whole(config, "vocab_size"),
        layers=_whole(config, "num_target_layers"),
        inputs=tuple(x for x in layers if type(x) is int),
    )


def head_problem(head: HeadFacts, target: ModelFacts) -> str | None:
    """Return how a head shows that it was made for another model than ``target``, or None."""
    return next(_problems(head, target), None)


def _problems(head: HeadFacts, target: ModelFacts) -> Iterator[str]:
    draft = head.method == "draft_model"
    width = None if head.method in _OWN_WIDTH else head.hidden_size
    if width is not None and width != target.hidden_size:
        yield (
            f"it reads hidden states of {width:,} values and the target's have "
            f"{target.hidden_size:,}"
        )
    if head.vocab_size is not None and head.vocab_size != target.vocab_size:
        yield (
            f"its vocabulary has {head.vocab_size:,} tokens and the target's {target.vocab_size:,}"
        )
    if head.layers is not None and head.layers != target.layers:
        yield f"it was made for {head.layers} layers and the target has {target.layers}"
    if max(head.inputs, default=0) > target.layers:
        yield f"it reads layer {max(head.inputs)} and the target has {target.layers}"
    if (head.folder / "tokenizer.json").exists():
        names = ("target", "draft" if draft else "head")
        difference = tokenizer_difference(Path(target.path), head.folder, names=names)
        if difference is not None:
            yield f"its tokenizer is not the target's: {difference}"
    elif draft:
        raise CheckpointError(
            f"{head.folder} has no tokenizer.json", fix="give a draft with its tokenizer"
        )


def _method(config: Mapping[str, Any]) -> tuple[str | None, bool]:
    """(vLLM's method or None, whether all tokens are proposed in one pass)."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    kinds = (config.get("speculators_model_type"), first, config.get("model_type"))
    for kind in (str(each).lower() for each in kinds if each):
        for word, method in _BY_NAME.items():
            if word in kind:
                return method, word == "peagle" or any(key in config for key in _ALL_AT_ONCE)
    return None, any(key in config for key in _ALL_AT_ONCE)


def _trained_tokens(config: Mapping[str, Any]) -> int | None:
    """K of a head in the format of the library speculators; None of any other."""
    try:
        tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (KeyError, IndexError, TypeError):
        return None
    return tokens if type(tokens) is int and tokens > 0 else None


def _whole(config: Mapping[str, Any], *keys: str) -> int | None:
    return next((config[key] for key in keys if type(config.get(key)) is int), None)
