"""The configuration under test, and the engine arguments that it resolves to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from whet.core.quote import EnvName

Scalar = str | int | float | bool
Batching = Literal["continuous", "static"]
UNQUANTIZED: Final = frozenset({"16bit", "32bit"})
"""Schemes of weights that are not quantized."""
BY_LOAD: Final = "num_speculative_tokens_per_batch_size"
"""vLLM's option of K by the requests in flight."""
SYNTHETIC_LENGTH: Final = "synthetic_acceptance_length"
"""vLLM's option of an acceptance length that is simulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """Speculative decoding: vLLM's name of the ``method``; K = ``num_tokens``.

    ``draft_path`` is the draft model or the head where the method has one.
    """

    method: str
    num_tokens: int
    draft_path: str | None
    options: tuple[tuple[str, Scalar], ...] = ()

    @property
    def by_load(self) -> bool:
        """Whether K falls with the requests in flight (vLLM's schedule of K by concurrency)."""
        return BY_LOAD in dict(self.options)

    @property
    def synthetic_length(self) -> float | None:
        """Acceptance length that the engine simulates; None where drafts are verified."""
        length = dict(self.options).get(SYNTHETIC_LENGTH)
        return None if length is None else float(length)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Servers of one variant behind a router, each on devices of its own.

    ``decode`` servers take requests in turn. Where there are ``prefill`` servers, those compute the
    prompts and hand the KV cache over through ``connector``.
    """

    decode: int
    prefill: int = 0
    connector: str | None = None

    @property
    def servers(self) -> int:
        """How many there are."""
        return self.prefill + self.decode

    @property
    def text(self) -> str:
        """``2 replicas``, ``1 prefill + 1 decode``."""
        if not self.prefill:
            return f"{self.decode} replicas"
        return f"{self.prefill} prefill + {self.decode} decode"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One serving configuration, resolved: every lever has a value, nothing is left to a default.

    ``weights`` is ``16bit`` for the target's own, the name of a quantization recipe, or the folder
    or hub id of quantized weights. ``scheme`` is what is stored there, and ``recipe_schemes`` the
    recipe's own words for it, a mixed recipe's wider form after it.
    ``engine_args`` are the engine's own flags without dashes (``max_model_len``), spec-wide ones
    first, those of lever keys after, the variant's own last. ``loras`` are (name, folder) pairs,
    ``max_loras`` how many of them are in memory at once, ``lora_skew`` how unevenly requests use
    them (``core.adapters``). ``batching`` is how requests are sent:
    ``continuous``, or ``static`` batches that wait for their slowest member. ``own_args`` names the
    flags that this variant sets itself: they are levers, those that all variants share are not.
    ``layout`` is set where several servers answer together.
    ``engine`` is the spec's name of an engine that is not the run's own.
    ``kv_scales`` says that the checkpoint brings scales of its own for an FP8 KV cache.
    ``secret_env`` goes to the engine's process only: it is never stored, printed or compared.
    """

    name: str
    weights: str
    scheme: str
    model_path: str
    speculation: Speculation | None
    prefix_cache: bool
    engine_args: tuple[tuple[str, Scalar], ...] = ()
    env: tuple[tuple[EnvName, str], ...] = ()
    recipe_schemes: tuple[str, ...] = ()
    loras: tuple[tuple[str, str], ...] = ()
    max_loras: int | None = None
    lora_rank: int | None = None
    lora_skew: float = 0.0
    layout: Layout | None = None
    batching: Batching = "continuous"
    own_args: tuple[str, ...] = ()
    kv_scales: bool = False
    engine: str | None = None
    secret_env: Annotated[tuple[tuple[str, str], ...], Field(exclude=True)] = field(
        default=(), repr=False, compare=False
    )

    @property
    def weights_label(self) -> str:
        """``16bit``, ``as stored (FP8)`` of a quantized target, a recipe or a checkpoint."""
        if self.weights == "16bit" and self.scheme not in UNQUANTIZED:
            return f"as stored ({self.scheme})"
        return Path(self.weights).name if self.weights.startswith("/") else self.weights


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedEngine:
    """Everything that was set, and the exact command that sets it.

    ``argv`` holds ``{port}`` where the port goes: it is chosen when the server starts.
    ``serve_line`` is the same command for a shell, with its variables and port 8000; it names a hub
    checkpoint by id and revision, where ``argv`` has its folder in this machine's cache.
    ``url`` is an attached server's, and ``extra_body`` the JSON object put into its requests.
    Secrets are never part of ``env`` here; they are passed to the process only.
    """

    variant: Variant
    engine: str
    engine_version: str
    device: str
    served_model_name: str
    argv: tuple[str, ...]
    env: tuple[tuple[EnvName, str], ...]
    serve_line: str
    ready_timeout_s: float
    url: str | None = None
    extra_body: str | None = None

    @property
    def title(self) -> str:
        """``vllm 0.32.0 on cpu``."""
        return f"{self.engine} {self.engine_version} on {self.device}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StartFacts:
    """How the server came up: seconds from spawn to ``/health``, and to the canary's last token.

    ``nice`` is the process' priority value, 0 is normal; None where it is unknown. ``worker`` names
    the worker of ``--executor ray`` that it came up on; None on this machine. ``forked`` from a
    process that had done the imports.
    """

    variant: str
    ready_s: float
    canary_text: str
    port: int
    pid: int | None
    attempts: int
    nice: int | None = None
    worker: str | None = None
    forked: bool = False
    health_s: float | None = None
