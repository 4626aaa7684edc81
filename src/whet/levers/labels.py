"""Labels of a variant's levers, the same in every table, and how two variants differ by them."""

from __future__ import annotations

from whet.core.records import Variant
from whet.levers import LEVERS


def labels(variant: Variant) -> frozenset[str]:
    """Everything that a variant sets: ``weights=awq``, ``prefix_cache``, ``kv_cache_dtype=fp8``."""
    return frozenset(label for lever in LEVERS for label in lever.labels(variant))


def lever_diff(variant: Variant, baseline: Variant) -> frozenset[str]:
    """The labels by which a variant differs from ``baseline``.

    A flag that only the baseline sets is written ``name=unset``, so that leaving it out counts too.
    """
    mine, theirs = labels(variant), labels(baseline)
    names = {label.split("=", 1)[0] for label in mine}
    gone = {label.split("=", 1)[0] for label in theirs - mine} - names
    return frozenset((mine - theirs) | {f"{name}=unset" for name in gone})
