"""What lm-evaluation-harness measured of a served variant, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessMetric:
    """One of the harness's own figures, under its own name: ``acc_norm`` of filter ``none``.

    ``score.value`` is the harness's; the interval is Wilson's where samples are right or wrong and
    Student's where they are graded, and None where the figure is not the mean of its samples.
    ``higher_is_better`` is None where the task does not say.
    """

    name: str
    filter: str
    score: Estimate
    higher_is_better: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessTask:
    """One task, or a group of them with its own figures and ``members``.

    ``asked`` is the name that a person gave, ``task`` the one that the harness ran for it.
    ``output_type`` is the harness's (``multiple_choice``, ``generate_until``, …). ``broken`` counts
    samples with a likelihood that is not a number. ``missing`` says why there are no figures.
    """

    asked: str
    task: str
    version: str | None = None
    output_type: str | None = None
    num_fewshot: int | None = None
    samples: int = 0
    available: int | None = None
    metrics: tuple[HarnessMetric, ...] = ()
    members: tuple[str, ...] = ()
    broken: int = 0
    missing: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessSample:
    """One document of one task under one filter, as the harness scored it.

    ``doc_hash`` and ``prompt_hash`` are the harness's SHA-256 of the document and of the prompt as
    sent, few-shot examples and template included: only samples that agree in both may be paired.
    ``metrics`` are the values that are one number. ``response`` is the filtered answer; for
    likelihoods a JSON list of [log-probability, greedy] as text for each choice. ``prompt_end`` is
    the last few hundred characters of the prompt.
    """

    task: str
    filter: str
    doc_id: int
    doc_hash: str
    prompt_hash: str
    metrics: tuple[tuple[str, float], ...]
    target: str
    response: str
    prompt_end: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessRun:
    """One variant's tasks and samples. Longer prompts are cut to ``max_length`` tokens."""

    variant: str
    model: str
    harness_version: str
    seed: int
    limit: int | None
    max_length: int
    tasks: tuple[HarnessTask, ...]
    samples: tuple[HarnessSample, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessExample:
    """A sample that scored worse than on the baseline, side by side."""

    task: str
    doc_id: int
    prompt_end: str
    target: str
    baseline: str
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessScore:
    """One metric of one asked task against the baseline's, paired by document and prompt.

    A group's samples are pooled over its members. ``score`` and ``baseline_score`` are means over
    the ``pairs``, ``difference`` this variant's less the baseline's. ``lost`` and ``gained`` count
    samples that got worse and better, whichever way the metric points. ``p_value`` is McNemar's
    exact test for right or wrong, a sign-flip permutation test where ``graded``.
    ``detectable_drop`` is the smallest loss that these pairs see with 80 % power at 5 %.
    ``unpaired`` counts samples of either side without a partner; ``missing`` says why there is no
    comparison.
    """

    task: str
    metric: str = ""
    filter: str = ""
    graded: bool = False
    higher_is_better: bool = True
    pairs: int = 0
    unpaired: int = 0
    score: Estimate | None = None
    baseline_score: Estimate | None = None
    difference: Estimate | None = None
    lost: int | None = None
    gained: int | None = None
    p_value: float | None = None
    detectable_drop: float | None = None
    examples: tuple[HarnessExample, ...] = ()
    missing: str | None = None
