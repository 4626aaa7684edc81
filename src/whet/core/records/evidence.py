"""What a variant claims, and what the engine itself said or counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from whet.core.load import Load

Evidence = Literal["proved", "accepted", "unproved", "contradicted"]
"""From best to worst. *accepted* is an unproved claim that the spec names in
``evidence.accept_unproved``."""
SUFFICIENT: Final = frozenset[Evidence]({"proved", "accepted"})
"""The outcomes with which a cell counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A feature that a variant says is on (or off).

    ``kind`` is ``weights``, ``speculation``, ``prefix_cache`` …; ``expected`` says in words what
    the engine must have said or counted for the claim to stand. A ``per_cell`` claim is judged
    for every concurrency from counters, any other once from the start-up log.
    """

    kind: str
    statement: str
    expected: str
    per_cell: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a claim holds; a cell counts if all its outcomes are in ``SUFFICIENT``.

    ``sources`` quotes the log line or the counter with its values before and after.
    ``load`` is None for a claim that is judged once a server.
    """

    variant: str
    load: Load | None
    claim: Claim
    outcome: Evidence
    observed: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictSet:
    """Every verdict on one variant, as stored."""

    variant: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFacts:
    """What the engine's own start-up log says. None where it says nothing.

    ``tensor_parallel`` is the ``tp_size`` that every linear layer shows; ``graphs_captured`` is
    True if the log reports that CUDA graphs were captured; ``kv_cache_dtype`` is the type that the
    log names for a quantized KV cache, ``kv_elements`` how many numbers the target's layers keep of
    a token and ``kv_memory_gib`` the memory for them; ``loras`` names the adapters loaded.
    ``draft_head`` is the type of the draft's copy of the output head,
    ``frontend`` is ``python`` or ``rust``. ``load_s`` is the time that the weights took,
    ``init_s`` that of profiling, cache, compilation and warm-up after them; ``compile_s`` and
    ``graphs_s`` are parts of it. ``core_s`` is the time from the engine core's first line until the
    server listens, without the spawning of workers. ``settings`` are others that the log reports,
    by the names of the spec.
    """

    version: str | None = None
    weight_kernels: tuple[str, ...] = ()
    quantized_layers: int | None = None
    unquantized_layers: int | None = None
    attention_backend: str | None = None
    kv_cache_tokens: int | None = None
    prefix_cache_enabled: bool | None = None
    async_scheduling: bool | None = None
    notices: tuple[str, ...] = ()
    max_model_len: int | None = None
    batched_tokens: int | None = None
    eager: bool | None = None
    graphs_captured: bool | None = None
    tensor_parallel: int | None = None
    attention_class: str | None = None
    kv_cache_dtype: str | None = None
    kv_memory_gib: float | None = None
    kv_elements: int | None = None
    expert_parallel: bool | None = None
    loras: tuple[str, ...] = ()
    api_servers: int | None = None
    v2_model_runner: bool | None = None
    frontend: str | None = None
    performance_mode: str | None = None
    draft_head: str | None = None
    load_s: float | None = None
    init_s: float | None = None
    compile_s: float | None = None
    graphs_s: float | None = None
    core_s: float | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What the server's own endpoints say once it is up, as written there.

    ``config`` is ``/server_info`` flattened (``scheduler_config.max_num_seqs`` → ``32``), ``cache``
    the labels of ``vllm:cache_config_info``, ``models`` the ids of ``/v1/models``, ``engines`` how
    many engines the metrics name. Empty or None where an endpoint is missing. A resolved setting
    says what was decided, not always what runs: evidence asks a second source where it is known
    to lie.
    """

    version: str | None
    config: tuple[tuple[str, str], ...]
    cache: tuple[tuple[str, str], ...]
    models: tuple[str, ...]
    engines: int | None = None

    def setting(self, key: str) -> str | None:
        """The resolved value of a dotted key, or None."""
        return dict(self.config).get(key)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialNotices:
    """Notable lines that the engine logged while a trial ran: kernels compiled late, …"""

    variant: str
    load: Load
    trial: int
    notices: tuple[str, ...]
