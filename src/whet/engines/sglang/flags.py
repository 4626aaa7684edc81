"""The command-line words of a variant, in SGLang's own names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, partial
from importlib import resources
from typing import Final

from whet.core.errors import UsageError
from whet.core.flags import plain_args
from whet.core.names import did_you_mean
from whet.core.records.engine import Scalar, Speculation, Variant
from whet.engines.command import all_words, ask_python, refuse_owned

ALGORITHMS: Final = {
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "ngram": "NGRAM",
}
_ASK_TIMEOUT_S: Final = 180.0
_COMMON: Final = {
    "max_model_len": "context_length",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
}
"""Names that all engines share, and SGLang's own."""
_ASK: Final = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
flags = {
    word[2:]: action.nargs == 0
    for action in parser._actions for word in action.option_strings if word.startswith("--")
}
print("ANSWER=" + json.dumps(flags))
"""


@cache
def shipped_flags() -> dict[str, bool]:
    """The flags of the SGLang that this was written against; True: a switch without a value."""
    text = resources.files("whet.engines.sglang").joinpath("flags.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.removeprefix("!"): line.startswith("!") for line in lines}


@cache
def installed_flags(python: str) -> dict[str, bool]:
    """The flags of the engine's own parser; empty if it does not run. Takes about 10 s."""
    answer = ask_python(python, _ASK, timeout_s=_ASK_TIMEOUT_S)
    flags: dict[str, bool] = {} if answer is None else json.loads(answer)
    return flags


def variant_words(variant: Variant, *, python: str) -> list[str]:
    """Every flag of a variant; ``UsageError`` for one that this SGLang does not have."""
    words = [] if variant.prefix_cache else ["--disable-radix-cache"]
    if variant.speculation is not None and variant.speculation.method in ALGORITHMS:
        words += _speculation_words(variant.speculation)
    return words + all_words(_own_args(variant), partial(_flag_words, python=python))


def _speculation_words(speculation: Speculation) -> list[str]:
    """K drafts in a chain: the verified block holds the token that they follow as well."""
    verified = ("--speculative-num-draft-tokens", str(speculation.num_tokens + 1))
    words = ["--speculative-algorithm", ALGORITHMS[speculation.method]]
    if speculation.method == "ngram":  # its default is a tree of up to ten branches
        return [*words, "--speculative-ngram-max-bfs-breadth", "1", *verified]
    if speculation.draft_path is not None:
        words += ["--speculative-draft-model-path", speculation.draft_path]
    steps = ("--speculative-num-steps", str(speculation.num_tokens))
    return [*words, *steps, "--speculative-eagle-topk", "1", *verified]


def _own_args(variant: Variant) -> Iterator[tuple[str, Scalar]]:
    """The flags of a variant, those that other engines name otherwise in SGLang's words."""
    for key, value in plain_args(variant).items():
        if key == "enforce_eager":
            if value is True:
                yield "disable_cuda_graph", True
        elif key == "enable_chunked_prefill":
            if value is False:
                yield "chunked_prefill_size", -1
        elif (key, value) == ("kv_cache_dtype", "fp8"):
            yield key, "fp8_e4m3"
        else:
            yield key, value


def _flag_words(key: str, value: Scalar, python: str) -> list[str]:
    plain = _COMMON.get(key, key)
    refuse_owned("sglang", key, plain)
    name = plain.replace("_", "-")
    known = shipped_flags()
    if name not in known:
        known = installed_flags(python) or known
    if name not in known:
        near = did_you_mean(plain, [*_COMMON, *(flag.replace("-", "_") for flag in known)])
        raise UsageError(f"SGLang has no flag {key!r}{near or '; correct args'}")
    if not known[name]:
        return [f"--{name}", str(value)]
    if value is True:
        return [f"--{name}"]
    raise UsageError(f"engine flag {key!r} is a switch", fix=f"leave it out instead of {value!r}")
