"""The two ways people write objectives, read and written."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.records.objective import Bound, Constraint

LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
_WORD_OF: Final = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
_ALIAS: Final = {"e2el": "e2e"}
_STATISTICS: Final = ("mean", "median", "p90", "p95", "p99")
_MS_PER: Final = {"us": Decimal("0.001"), "ms": Decimal(1), "s": Decimal(1000)}
_WORDS_FORM: Final = "write it in ms as ttft:200, tpot:50 or e2el:5000"
_FORM: Final = "write it as ttft:p95<300ms, itl:median<10ms, e2e:p99<=5s or error<1%"
_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?"


def parse_goodput(words: Sequence[str]) -> tuple[Bound, ...]:
    """vLLM's ``--goodput`` words as bounds, in their order. Raises ``UsageError``."""
    bounds: list[Bound] = []
    for word in [part for text in words for part in text.split()]:
        name, colon, number = word.casefold().partition(":")
        if not colon:
            raise UsageError(f"the goodput bound {word!r} names no limit", fix=_WORDS_FORM)
        metric = _ALIAS.get(name, name)
        if metric not in _WORD_OF:
            raise UsageError(
                f"the goodput bound {word!r} is on {name!r}, which no single request has"
                f"{did_you_mean(name, _WORD_OF.values())}",
                fix=_WORDS_FORM,
            )
        if re.fullmatch(_NUMBER, number) is None:
            raise UsageError(f"the goodput bound {word!r} has no plain number", fix=_WORDS_FORM)
        if metric in (bound.metric for bound in bounds):
            raise UsageError(
                f"the goodput bound {word!r} is the second on {metric}", fix="keep one"
            )
        limit_ms = _positive(Decimal(number), word, _WORDS_FORM)
        bounds.append(Bound(metric=metric, limit_ms=limit_ms))
    if not bounds:
        raise UsageError("no goodput bound is given", fix=_WORDS_FORM)
    return tuple(bounds)


def goodput_text(bounds: Sequence[Bound]) -> str:
    """The bounds as ``parse_goodput`` reads them."""
    return " ".join(f"{_WORD_OF[bound.metric]}:{_plain(bound.limit_ms)}" for bound in bounds)


def parse_objective(text: str) -> tuple[Constraint, ...]:
    """Constraints joined by ``;``, in their order. Raises ``UsageError``."""
    constraints: list[Constraint] = []
    keys: set[tuple[str, str | None]] = set()
    for part in [item.strip() for item in text.split(";") if item.strip()]:
        constraint = _constraint(part)
        key = (constraint.metric, constraint.statistic)
        if key in keys:
            raise UsageError(f"the objective {part!r} is the second of its kind", fix="keep one")
        keys.add(key)
        constraints.append(constraint)
    if not constraints:
        raise UsageError("the objective is empty", fix=_FORM)
    return tuple(constraints)


def _constraint(part: str) -> Constraint:
    match = re.fullmatch(r"([^:<>=]*)(?::([^<>=]*))?(<=?)([^<>=]*)", part.casefold())
    if match is None:
        raise UsageError(f"the objective {part!r} is not a constraint", fix=_FORM)
    name, statistic, sign, value = (item and item.strip() for item in match.groups())
    metric = _ALIAS.get(name, name)
    if metric not in (*LATENCIES, "error"):
        raise UsageError(
            f"the objective {part!r} has the unknown metric {name!r}"
            f"{did_you_mean(name, (*LATENCIES, 'error'))}",
            fix=_FORM,
        )
    limit, unit = _limit(part, metric, value)
    return Constraint(
        metric=metric,
        statistic=_statistic(part, metric, statistic),
        limit=limit,
        unit=unit,
        inclusive=sign == "<=",
    )


def _statistic(part: str, metric: str, word: str | None) -> str | None:
    if metric == "error":
        if word is not None:
            raise UsageError(f"the objective {part!r} has a statistic", fix="write error<1%")
        return None
    if not word:
        raise UsageError(f"the objective {part!r} has no statistic (mean, median, pNN)", fix=_FORM)
    if word in ("mean", "median"):
        return word
    digits = re.fullmatch(r"p(\d+(?:\.\d+)?)", word)
    if digits is None:
        raise UsageError(
            f"the objective {part!r} has the unknown statistic {word!r}"
            f"{did_you_mean(word, _STATISTICS)}",
            fix="use mean, median or pNN, as in p95 or p99.9",
        )
    percent = Decimal(digits[1])
    if not 0 < float(percent / 100) < 1:
        raise UsageError(
            f"the statistic of the objective {part!r} must be between p0 and p100 (got {word})"
        )
    return "median" if percent == 50 else f"p{trimmed(percent)}"


def _limit(part: str, metric: str, text: str) -> tuple[float, str]:
    match = re.fullmatch(rf"({_NUMBER})\s*(\S*)", text)
    if match is None:
        raise UsageError(f"the objective {part!r} has no number after its sign", fix=_FORM)
    number, unit = Decimal(match[1]), match[2]
    units = ("%",) if metric == "error" else tuple(_MS_PER)
    if unit not in units:
        problem = f"the unit {unit!r}" if unit else "no unit"
        raise UsageError(
            f"the objective {part!r} has {problem}{did_you_mean(unit, units)}",
            fix=f"{metric} is counted in {' or '.join(units)}",
        )
    if unit == "%":
        share = _positive(number, part, _FORM)
        if share >= 100:
            raise UsageError(f"the objective {part!r} allows every request to fail", fix=_FORM)
        return share, unit
    return _positive(number * _MS_PER[unit], part, _FORM), "ms"


def _positive(number: Decimal, part: str, form: str) -> float:
    if not 0 < float(number) < math.inf:
        raise UsageError(f"the limit in {part!r} has to be above 0 and finite", fix=form)
    return float(number)


def constraint_text(constraint: Constraint) -> str:
    """The canonical form, latencies in ms."""
    statistic = "" if constraint.statistic is None else f":{constraint.statistic}"
    sign = "<=" if constraint.inclusive else "<"
    return f"{constraint.metric}{statistic}{sign}{_plain(constraint.limit)}{constraint.unit}"


def _plain(number: float) -> str:
    return trimmed(Decimal(repr(number)))


def trimmed(number: Decimal) -> str:
    """Return a number without zeros at its end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
