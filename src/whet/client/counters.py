"""The server's own counters, from its Prometheus text."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from time import monotonic_ns

from whet.client.simple import get_text
from whet.core.records.load import Counters

_SAMPLE = re.compile(
    r'([A-Za-z_:][\w:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?\s+([^\s#]+)'
    r"(?:\s+-?[\d.]+)?(?:\s+#.*)?"
)
"""Name, labels and value; a time and an exemplar may follow."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TERM = re.compile(r"([-+] )?(?:(\d+) \* )?([A-Za-z_:][^\s]*)")
_SPLIT_LABELS = ("position", "source", "finished_reason", "running_lora_adapters", "status")
_LEFT_OUT = ("_bucket", "_created")
_NOT_ADDITIVE = re.compile(
    r"_(perc(ent(age)?)?|ratio|fraction|rate|usage|util(i[sz]ation)?|efficiency"
    r"|accept_length|per_decode|timestamp(_seconds)?|start_time_seconds|requests_info)$"
)
"""Gauges whose sum over engines means nothing: shares, means and moments."""


def scrape(
    base_url: str,
    *,
    origin_ns: int = 0,
    timeout_s: float = 30.0,
    names: Mapping[str, str] | None = None,
) -> Counters:
    """GET ``/metrics`` now; ``taken_ns`` counts from ``origin_ns`` (absolute monotonic ns).

    ``names`` map an engine's own counters to those of ``core.counters``, or sums of several of
    them: ``a - b``, ``4 * a``. A sum is absent where one of its parts is not exported.
    Raises ``HttpError`` where the server has none (status 404) and ``EngineLostError`` where it
    does not answer.
    """
    text = get_text(base_url, "/metrics", timeout_s=timeout_s)
    values = rename_counters(dict(parse_counters(text)), names or {})
    return Counters(taken_ns=monotonic_ns() - origin_ns, values=tuple(sorted(values.items())))


def rename_counters(values: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """The counters by the names of ``core.counters``, as ``scrape`` gives them."""
    renamed = {name: value for name, value in values.items() if name not in names}
    for own, name in names.items():
        terms = [(match[1], match[2], match[3]) for match in _TERM.finditer(own)]
        if all(part in values for _, _, part in terms):
            renamed[name] = sum(
                (-1 if sign == "- " else 1) * float(factor or 1) * values[part]
                for sign, factor, part in terms
            )
    return renamed


def parse_counters(text: str) -> tuple[tuple[str, float], ...]:
    """Samples summed over their labels, sorted by name; what is not exported is absent.

    Of shares, means and moments (KV usage, start time) the largest is taken instead.
    A sample that carries one of the labels position, source, finished_reason, status or
    running_lora_adapters is given once more for each of its values, as ``name{position="0"}``.
    Histogram buckets and creation times are left out: their sums mean nothing. A value that is not
    finite counts as absent.
    """
    values: dict[str, float] = {}
    for name, labels, value in _samples(text):
        if value is None or name.endswith(_LEFT_OUT):
            continue
        split = [
            f'{name}{{{label}="{content}"}}'
            for label, content in labels.items()
            if label in _SPLIT_LABELS
        ]
        largest = _NOT_ADDITIVE.search(name) is not None
        for key in (name, *split):
            before = values.get(key)
            if before is None:
                values[key] = value
            else:
                values[key] = max(before, value) if largest else before + value
    return tuple(sorted(values.items()))


def parse_buckets(text: str, name: str) -> tuple[tuple[float, float], ...]:
    """Cumulative counts of the histogram ``name`` by upper edge, summed over other labels."""
    counts: defaultdict[float, float] = defaultdict(float)
    for own, labels, count in _samples(text):
        if own == f"{name}_bucket":
            le = labels.get("le", "")
            edge = math.inf if le == "+Inf" else _number(le)
            if edge is not None and count is not None:
                counts[edge] += count
    return tuple(sorted(counts.items()))


def info_labels(text: str, name: str) -> dict[str, str]:
    """Return the labels on which all samples (one per engine) of the info metric ``name`` agree.

    Empty where it is not exported.
    """
    samples = [set(labels.items()) for own, labels, _ in _samples(text) if own == name]
    return dict(set.intersection(*samples)) if samples else {}


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float | None]]:
    """Name, labels and value of each sample; the value is None where it is not finite."""
    for match in filter(None, map(_SAMPLE.fullmatch, map(str.strip, text.splitlines()))):
        yield match[1], dict(_LABEL.findall(match[2] or "")), _number(match[3])


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
