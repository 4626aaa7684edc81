"""What a variant says about itself, and what would prove it."""

from __future__ import annotations

from typing import Final

from whet.core.records import Claim, Variant

UNQUANTIZED: Final = frozenset({"16bit", "32bit"})
HIT_RATE_MARGIN: Final = 0.02
"""Two points either way, for the last block of each prompt and requests cut short."""


def claims(variant: Variant) -> tuple[Claim, ...]:
    """Weights once a server; speculation and prefix cache, on or off, for every batch size."""
    return (_weights(variant), _speculation(variant), _prefix_cache(variant))


def _weights(variant: Variant) -> Claim:
    if variant.scheme in UNQUANTIZED:
        return Claim(
            kind="weights",
            statement=f"{variant.scheme} weights, not quantized",
            expected="the log shows the model's layers, none with quant=, and no kernel for "
            "quantized weights",
            per_cell=False,
        )
    return Claim(
        kind="weights",
        statement=f"{variant.scheme} weights run on a kernel made for them",
        expected="the log names such a kernel, shows quant= on the model's layers, and no fallback",
        per_cell=False,
    )


def _speculation(variant: Variant) -> Claim:
    if variant.speculation is None:
        return Claim(
            kind="speculation",
            statement="no speculation",
            expected="the speculation counters are absent or do not move",
            per_cell=True,
        )
    return Claim(
        kind="speculation",
        statement=f"speculation by {variant.speculation.method}, "
        f"K = {variant.speculation.num_tokens}, has tokens accepted",
        expected="drafts and accepted tokens both rise over the timed requests",
        per_cell=True,
    )


def _prefix_cache(variant: Variant) -> Claim:
    if not variant.prefix_cache:
        return Claim(
            kind="prefix_cache",
            statement="no prefix cache",
            expected="the tokens looked up in the prefix cache do not rise",
            per_cell=True,
        )
    return Claim(
        kind="prefix_cache",
        statement="the prefix cache hits as often as the workload was built to let it",
        expected=f"Δhits ÷ Δqueries within {HIT_RATE_MARGIN * 100:g} points of the workload's; "
        "without a warm-up, first uses of a shared prefix in flight together may miss as well",
        per_cell=True,
    )
