"""From active detectors to what changed, by name, and to the spec of a run that decides again.

A person starts that run; it is restricted to the levers that a cause puts in question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from whet.core.quote import yaml_text
from whet.core.redact import one_line
from whet.core.spec import Spec
from whet.core.store import write_atomic

ALL_LEVERS: Final = "all"
"""A new run measures every variant of the old one again."""

What = Literal["traffic", "prompts", "engine", "model", "machine", "load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A named fault.

    ``needs`` are the detectors that have to be active, ``without`` those that must not. ``hides``
    are causes that it explains. ``levers`` are the names of ``whet.levers`` that a new run has to
    measure again (``all``: every variant), empty where no run can help. ``say`` is for a person.
    """

    name: str
    what: What
    say: str
    needs: frozenset[str]
    without: frozenset[str] = frozenset()
    hides: frozenset[str] = frozenset()
    levers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause that is present, with the figures that show it."""

    cause: Cause
    evidence: tuple[str, ...]


_SLOW: Final = "slower_than_measured first_token_slower"
_DRAFTS: Final = "acceptance_of_traffic_fell draft_changed draft_useless"
_HITS: Final = "prefix_hits_fell prompts_changed"


def _cause(name: str, what: What, say: str, **names: str) -> Cause:
    """A cause; ``needs`` (default: its own name), ``without``, ``hides``, ``levers`` in words."""
    needs, *others = (names.get(key, "").split() for key in ("needs", "without", "hides", "levers"))
    return Cause(
        name=name,
        what=what,
        say=say,
        needs=frozenset(needs or [name]),
        without=frozenset(others[0]),
        hides=frozenset(others[1]),
        levers=tuple(others[2]),
    )


CAUSES: Final[tuple[Cause, ...]] = (
    _cause("unreachable", "engine", "the engine does not answer", hides="*"),
    _cause("unauthorized", "engine", "the engine refuses the API key", hides="*"),
    _cause("hung", "engine", "the engine hangs: no token comes and nothing finishes", hides="*"),
    _cause("wrong_model", "model", "another model is served", hides="*"),
    _cause("several_engines", "engine", "two engines answer on one port", hides="*"),
    _cause("metrics_renamed", "engine", "the engine's metrics have other names"),
    _cause("engine_version", "engine", "another version of the engine runs", levers=ALL_LEVERS),
    _cause("restart_loop", "engine", "the engine is restarted again and again", hides=_SLOW),
    _cause("probe_failed", "engine", "probe requests fail", hides=_SLOW),
    _cause("answers_unread", "engine", "golden probes get no log-probabilities; the run had them"),
    _cause(
        "answers_broken",
        "model",
        "answers are not numbers (NaN)",
        hides="answers_changed",
    ),
    _cause(
        "unquantized_weights",
        "model",
        "the 16-bit weights are served instead of the quantized ones",
        needs="answers plain_answers",
        hides=f"{_SLOW} answers_changed",
        levers="weights",
    ),
    _cause(
        "answers_changed",
        "model",
        "the model answers otherwise: its weights, adapters or kernels changed",
        needs="answers",
        without="plain_answers",
        hides=f"{_SLOW} {_DRAFTS}",
        levers="weights",
    ),
    _cause("context_shortened", "engine", "max_model_len is smaller than measured"),
    _cause("adapter_missing", "model", "a LoRA adapter is not served"),
    _cause(
        "speculation_off",
        "engine",
        "speculation is off",
        hides=f"{_SLOW} {_DRAFTS} metrics_missing",
        levers="speculation",
    ),
    _cause("speculation_on", "engine", "speculation is on", levers="speculation"),
    _cause(
        "draft_length_changed",
        "engine",
        "the server drafts another number of tokens per step (num_speculative_tokens)",
        hides=f"{_SLOW} {_DRAFTS}",
        levers="speculation",
    ),
    _cause(
        "draft_useless",
        "model",
        "no draft is accepted: the draft does not fit the target",
        hides=f"{_SLOW} draft_changed acceptance_of_traffic_fell",
        levers="speculation",
    ),
    _cause(
        "draft_changed",
        "model",
        "the draft changed: a fixed prompt has fewer tokens accepted",
        needs="probe_acceptance",
        hides=f"{_SLOW} acceptance_of_traffic_fell",
        levers="speculation",
    ),
    _cause(
        "acceptance_of_traffic_fell",
        "traffic",
        "requests became harder to draft; a fixed prompt did not",
        needs="any_acceptance",
        without="probe_acceptance",
        hides=_SLOW,
        levers="speculation",
    ),
    _cause(
        "prefix_cache_off",
        "engine",
        "the prefix cache is off",
        hides=f"{_SLOW} {_HITS} flags_changed",
        levers="prefix_cache",
    ),
    _cause("flags_changed", "engine", "the engine was started with other flags", hides=_SLOW),
    _cause(
        "chat_template_changed",
        "prompts",
        "the server's chat template or tokenizer changed",
        hides=_HITS,
        levers="prefix_cache",
    ),
    _cause(
        "prompts_changed",
        "prompts",
        "prompts changed: fewer prefixes hit and the lengths are others",
        needs="any_hits prompt_lengths",
        hides=f"{_SLOW} prefix_hits_fell prompt_lengths_changed",
        levers="prefix_cache",
    ),
    _cause(
        "prefix_hits_fell",
        "prompts",
        "fewer prefixes hit: a prompt's beginning varies now",
        needs="any_hits",
        hides=_SLOW,
        levers="prefix_cache",
    ),
    _cause(
        "prompt_lengths_changed",
        "traffic",
        "prompts have other lengths",
        needs="prompt_lengths",
        levers=ALL_LEVERS,
    ),
    _cause(
        "output_lengths_changed",
        "traffic",
        "answers have other lengths",
        needs="output_lengths",
        levers=ALL_LEVERS,
    ),
    _cause(
        "kv_cache_exhausted",
        "load",
        "the KV cache is full, or requests are preempted for want of it",
        needs="kv",
        hides=_SLOW,
        levers=ALL_LEVERS,
    ),
    _cause(
        "queue_growing",
        "load",
        "requests wait before they start",
        needs="queue",
        hides=_SLOW,
        levers=ALL_LEVERS,
    ),
    _cause(
        "load_above_measured",
        "load",
        "more requests run than were measured",
        needs="load",
        hides=_SLOW,
        levers=ALL_LEVERS,
    ),
    _cause("errors", "engine", "more requests fail than the objective allows"),
    _cause(
        "slower_than_measured",
        "machine",
        "tokens take longer at the same load",
        needs="tpot",
        hides="first_token_slower",
        levers=ALL_LEVERS,
    ),
    _cause(
        "first_token_slower",
        "machine",
        "first tokens take longer at the same load",
        needs="ttft",
        levers=ALL_LEVERS,
    ),
    _cause("metrics_missing", "engine", "/metrics lacks what the run had"),
)

_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "any_acceptance": frozenset({"acceptance", "acceptance_day"}),
    "any_hits": frozenset({"prefix_hits", "prefix_hits_day"}),
    "kv": frozenset({"kv_cache", "preemptions"}),
}
_BROKEN_CLAIM: Final = "claim_"
_FIELDS: Final[Mapping[str, Any]] = {
    "weights": "16bit",
    "speculation": None,
    "prefix_cache": False,
}
"""A variant's key for each lever that a cause names, and its value where the lever is off."""


def diagnose(active: Mapping[str, str]) -> list[Finding]:
    """The causes behind the active detectors (name → figures in words), the most certain first.

    A cause that another one explains is left out; its figures stay with that one.
    """
    names = set(active) | {group for group, any_of in _GROUPS.items() if any_of & set(active)}
    present = [c for c in CAUSES if c.needs <= names and not c.without & names]
    present = [*(_claim(name) for name in active if name.startswith(_BROKEN_CLAIM)), *present]
    hidden: set[str] = set()
    findings = []
    for cause in present:
        if cause.name in hidden or ("*" in hidden):
            continue
        hidden |= cause.hides
        findings.append(Finding(cause=cause, evidence=_evidence(cause, active)))
    return findings


def _claim(name: str) -> Cause:
    """A claim that the engine's own log contradicts after a start."""
    kind = name.removeprefix(_BROKEN_CLAIM)
    return Cause(
        name=name,
        what="engine",
        say=f"the engine's log contradicts the claim on {kind.replace('_', ' ')}",
        needs=frozenset({name}),
        hides=frozenset(_SLOW.split()),
        levers=(kind,),
    )


def _evidence(cause: Cause, active: Mapping[str, str]) -> tuple[str, ...]:
    wanted = set().union(*(_GROUPS.get(need, {need}) for need in cause.needs))
    return tuple(words for name, words in active.items() if name in wanted)


def proposed_spec(spec: Spec, variant: str, finding: Finding) -> dict[str, Any]:
    """The spec of a run that decides again, restricted to the levers in question.

    It measures the deployed variant, the baseline and the variants that differ from the deployed
    one in these levers only; one without the lever is added where the spec has none. A cause of
    load adds twice the largest concurrency.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    data["name"] = f"{spec.name}-{finding.cause.name}".replace("_", "-")
    data.pop("load", None)
    load = spec.load.model_dump(mode="json", exclude_defaults=True)
    if finding.cause.levers != (ALL_LEVERS,):
        data["variants"] = dict(_restricted(spec, variant, finding.cause.levers))
    if finding.cause.what == "load" and spec.load.concurrency:
        load["concurrency"] = [*spec.load.concurrency, 2 * max(spec.load.concurrency)]
    return data | {"load": load}


def _restricted(
    spec: Spec, variant: str, levers: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    written = {
        name: item.model_dump(mode="json", exclude_defaults=True)
        for name, item in spec.variants.items()
    }
    deployed = written[variant]
    fields = [lever for lever in levers if lever in _FIELDS]
    others = {
        name
        for name, item in written.items()
        if _without(item, fields) == _without(deployed, fields)
    }
    for name in spec.variants:
        if name in (spec.baseline, variant) or name in others:
            yield name, written[name]
    for field in fields:
        off = _without(deployed, [field])
        if deployed.get(field) not in (None, _FIELDS[field]) and off not in written.values():
            yield f"{variant}-no-{field}".replace("_", "-"), off


def _without(item: Mapping[str, Any], fields: list[str]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in fields}


def write_proposal(folder: Path, spec: Spec, variant: str, finding: Finding) -> Path:
    """Write the spec as ``CAUSE.yaml`` and return its path."""
    path = folder / f"{finding.cause.name}.yaml"
    words = [f"# {finding.cause.say}.", *(f"#   {one_line(item)}" for item in finding.evidence)]
    if spec.traffic is not None and finding.cause.what in ("traffic", "prompts"):
        words.append("# Put today's request log at traffic.log: the one below is the old run's.")
    words.append(f"# Start it: whet run {path.name}")
    body = yaml_text(proposed_spec(spec, variant, finding))
    write_atomic(path, "\n".join([*words, body]))
    return path
