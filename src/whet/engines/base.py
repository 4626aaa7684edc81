"""What every engine provides: a process to serve from, and a profile that says how to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from whet.core.counters import CACHE_CONFIG
from whet.core.protocols import Dialect, Engine
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Declared, EngineFacts
from whet.engines.compatibility import Installed, PlannedMachine
from whet.engines.deployment import DeploymentPlanner
from whet.engines.failures import Failures


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


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWords:
    """How the log shows which weights are quantized: for claims, and for what was observed."""

    expected: str = "shows quant= on the model's layers"
    not_expected: str = "shows the model's layers, none with quant="
    quantized: str = "layers with quant="
    unquantized: str = "linear without"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The kernels that the log names.

    ``schemes`` are those of each scheme; ``forced`` map an environment variable to the kernel it
    requests, ``libraries`` a name in the spec's ``kernels`` to the pattern of its kernels' names.
    ``load_time`` map a ``quantization`` flag to the scheme it makes of 16-bit weights.
    ``attention`` map a layer's class to the backend. ``slow_attention`` are backends that run only
    where the engine's best one does not: no statement about its speed is made on them.
    """

    schemes: Mapping[str, SchemeKernels] = field(default_factory=dict)
    forced: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    load_time: Mapping[str, str] = field(default_factory=dict)
    attention: Mapping[str, str] = field(default_factory=dict)
    slow_attention: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """What reports the KV cache of a running server, beside ``/server_info``.

    ``sections`` are the parts of the latter to look a flag up in.
    """

    cache: str = CACHE_CONFIG
    sections: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """``names`` map the engine's counters, or sums of them, to those of ``core.counters``.

    ``K`` in a name is the number of draft tokens. ``caches_tokens``: the prefix cache matches token
    by token, not by blocks. ``counts_every_prompt``: prompt tokens count as looked up with the
    prefix cache off too.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    caches_tokens: bool = False
    counts_every_prompt: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """How the engine is asked for log-probabilities; without ``dialect`` in vLLM's words.

    ``defect`` names a known defect that makes those of a prompt wrong, or None; ``alone`` says that
    the engine does not survive several scored prompts at once.
    """

    dialect: Dialect | None = None
    defect: Callable[[Variant, EngineFacts | None], str | None] = lambda _variant, _facts: None
    alone: Callable[[ResolvedEngine], bool] = lambda _resolved: False


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """``find`` takes the path of a Python; ``missing`` says what to do where it finds nothing.

    ``problem`` (installed, ``gpu=`` whether the machine has one) says why it cannot run here.
    """

    find: Callable[[str], Installed | None]
    missing: Callable[[str], str]
    problem: Callable[..., str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineProfile:
    """How to read one engine: its log, its endpoints, its counters, its kernels.

    ``title`` is its name in sentences. ``read_log`` turns a start-up log into facts, None where the
    log says nothing; ``start_line`` is printed once a start, before what evidence reads.
    ``read_declared`` takes a base URL without ``/v1``. ``layer_words`` are how the log shows
    quantized layers. ``planned_engine`` makes an engine that resolves variants for another machine;
    ``installation`` is None for an engine that is not a Python package. ``plan_deployment`` plans
    it in a container; None where there is nothing to deploy. ``sized_pool`` are the flags of a
    server with a KV pool of so many bytes that shares its GPU with others; None where the engine
    has none. ``trial_args`` (kind of device, ``eager=``) are flags of a server outside of a run.
    """

    name: str
    title: str
    read_log: Callable[[str], EngineFacts]
    read_declared: Callable[[str], Declared]
    start_line: str = ""
    patterns: Patterns = field(default_factory=Patterns)
    layer_words: LayerWords = LayerWords()
    kernels: Kernels = field(default_factory=Kernels)
    pages: Pages = field(default_factory=Pages)
    counters: Counters = field(default_factory=Counters)
    failures: Failures = field(default_factory=Failures)
    scoring: Scoring = field(default_factory=Scoring)
    installation: Installation | None = None
    planned_engine: Callable[[PlannedMachine], Engine] | None = None
    plan_deployment: DeploymentPlanner | None = None
    trial_args: Callable[..., Mapping[str, Scalar]] = lambda _device, *, eager: {}
    sized_pool: Callable[[int], Mapping[str, Scalar]] | None = None

    def counters_of(self, variant: Variant) -> tuple[tuple[str, str], ...]:
        """``counters.names`` with the variant's number of draft tokens."""
        tokens = 0 if variant.speculation is None else variant.speculation.num_tokens
        return tuple(
            (own.replace("K * ", f"{tokens} * "), name) for own, name in self.counters.names.items()
        )
