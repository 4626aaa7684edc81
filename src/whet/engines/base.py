"""What every engine provides: a process to serve from, and a profile that says how to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from whet.core.protocols import Engine
from whet.core.records import Declared, Dialect, EngineFacts, ResolvedEngine, Variant
from whet.engines.deployment import DeploymentPlanner
from whet.engines.failures import FailureSign
from whet.engines.installed import Installed
from whet.engines.planned import PlannedMachine


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeKernels:
    """Kernels made for a scheme (``native``), and those that only make it run (``fallback``).

    ``weight_only`` read the scheme's weights and leave activations in 16 bit, where the scheme has
    them in fewer. ``method`` is what the log says a kernel is for, where its name does not show
    the scheme.
    """

    native: frozenset[str]
    fallback: frozenset[str]
    weight_only: frozenset[str] = frozenset()
    method: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patterns:
    """Regular expressions over the log's notices; an empty one matches nothing.

    ``no_hardware`` and ``weight_fallbacks`` are plain substrings.
    """

    async_off: str = "(?!)"
    no_graphs: str = "(?!)"
    graphs_changed: str = "(?!)"
    attention_refused: str = "(?!)"
    unit_kv_scale: str = "(?!)"
    kernels_refused: str = "(?!)"
    v1_runner: str = "(?!)"
    no_hardware: str = "\0"
    weight_fallbacks: tuple[str, ...] = ()


def _no_defect(variant: Variant, facts: EngineFacts | None) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWords:
    """How the log shows which weights are quantized: for claims, and for what was observed."""

    expected: str = "shows quant= on the model's layers"
    not_expected: str = "shows the model's layers, none with quant="
    quantized: str = "layers with quant="
    unquantized: str = "linear without"


def _never(resolved: ResolvedEngine) -> bool:
    return False


class InstallationProblem(Protocol):
    """Why what a Python has installed cannot run on this machine, with the fix, or None."""

    def __call__(self, python: str, installed: Installed | None, *, gpu: bool) -> str | None:
        """``gpu`` is True where the machine has one that the engine can use."""


def _no_problem(python: str, installed: Installed | None, *, gpu: bool) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineProfile:
    """How to read one engine: its log, its endpoints, its counters, its kernels.

    ``title`` is its name in sentences.

    ``read_log`` turns a start-up log into facts, None where the log says nothing; ``read_notices``
    gives the lines that report something slower or other than requested. ``read_declared`` takes a
    base URL without ``/v1``. ``kernels`` are by scheme; ``forced_kernels`` map an environment
    variable to the kernel it requests, ``kernel_libraries`` a name in the spec's ``kernels`` to the
    pattern of its kernels' names. ``attention_classes`` map a layer's class to the backend.
    ``load_time_schemes`` map a ``quantization`` flag to the scheme it makes of 16-bit weights.
    ``setting_sections`` are the parts of the resolved configuration to look a flag up in.
    ``settings_page`` is the endpoint that reports it, ``cache_page`` what reports the cache,
    ``layer_words`` how the log shows quantized layers. ``caches_tokens``: the prefix cache matches
    token by token, not by blocks. ``counts_every_prompt``: prompt tokens count as looked up with
    the prefix cache off too. ``slow_attention`` are backends that run only where the engine's best
    one does not: no statement about its speed is made on them.
    ``failures`` are the known signs of a failed start, the most specific first.
    ``counter_names`` map the engine's counters, or sums of them (``client.counters``), to those of
    ``core.counters`` where they differ; ``K`` in them is the number of draft tokens.
    ``dialect`` is how the engine is asked for the log-probabilities of a prompt. ``ends_itself`` is
    what the log says where the engine kills its own processes, so that memory is not suspected.
    ``planned_engine`` makes an engine that resolves variants for another machine, and
    ``find_installed`` takes the path of a Python; both are None for an engine that whet does not
    start. ``installation_problem`` says why an installation cannot run here, with the fix.
    ``plan_deployment`` plans it in a container; None where there is nothing to deploy.
    ``start_line`` is printed once a start of the engine, before what evidence reads.
    ``scoring_defect`` names a known defect that makes prompt log-probabilities wrong, or None;
    ``scores_alone`` says that the engine does not survive several scored prompts at once.
    """

    name: str
    title: str
    read_log: Callable[[str], EngineFacts]
    read_notices: Callable[[str], tuple[str, ...]]
    read_declared: Callable[[str], Declared]
    patterns: Patterns = field(default_factory=Patterns)
    kernels: Mapping[str, SchemeKernels] = field(default_factory=dict)
    forced_kernels: Mapping[str, str] = field(default_factory=dict)
    kernel_libraries: Mapping[str, str] = field(default_factory=dict)
    attention_classes: Mapping[str, str] = field(default_factory=dict)
    load_time_schemes: Mapping[str, str] = field(default_factory=dict)
    setting_sections: tuple[str, ...] = ()
    layer_words: LayerWords = LayerWords()
    caches_tokens: bool = False
    counts_every_prompt: bool = False
    slow_attention: frozenset[str] = frozenset()
    settings_page: str = "/server_info"
    cache_page: str = "vllm:cache_config_info"
    failures: tuple[FailureSign, ...] = ()
    counter_names: Mapping[str, str] = field(default_factory=dict)
    planned_engine: Callable[[PlannedMachine], Engine] | None = None
    find_installed: Callable[[str], Installed | None] | None = None
    installation_problem: InstallationProblem = _no_problem
    plan_deployment: DeploymentPlanner | None = None
    start_line: str = ""
    scoring_defect: Callable[[Variant, EngineFacts | None], str | None] = _no_defect
    scores_alone: Callable[[ResolvedEngine], bool] = _never
    dialect: Dialect = "vllm"
    ends_itself: str = "\0"

    def counters_of(self, variant: Variant) -> tuple[tuple[str, str], ...]:
        """``counter_names`` with the variant's number of draft tokens."""
        tokens = 0 if variant.speculation is None else variant.speculation.num_tokens
        return tuple(
            (own.replace("K * ", f"{tokens} * "), name) for own, name in self.counter_names.items()
        )
