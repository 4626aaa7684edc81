"""How a replica is divided over GPUs: tensor, data, pipeline and expert parallelism."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from whet.core.errors import UsageError
from whet.core.records.engine import Scalar
from whet.core.records.model import ModelFacts

_WORD: Final = re.compile(r"(tp|dp|pp)?([1-9]\d{0,3})")
_NAMES: Final = {"tp": "tensor", "dp": "data", "pp": "pipeline"}
_FORM: Final = "give numbers of GPUs, or layouts such as tp8,tp2xdp4,dp8xep"
_USUAL: Final = (1, 2, 4, 8)
_BLOCK: Final = 128
"""Rows and columns of an FP8_BLOCK scale: vLLM refuses a cut within one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """``tensor`` × ``pipeline`` GPUs an engine, ``data`` engines; ``experts`` stay whole."""

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    experts: bool = False

    @property
    def devices(self) -> int:
        """GPUs of all."""
        return self.tensor * self.data * self.pipeline

    @property
    def text(self) -> str:
        """``TP2×DP4×EP``; ``TP1`` of one GPU."""
        degrees = {"TP": self.tensor, "DP": self.data, "PP": self.pipeline}
        words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
        return "×".join([*(words or ["TP1"]), *(["EP"] if self.experts else [])])

    @property
    def args(self) -> tuple[tuple[str, Scalar], ...]:
        """vLLM's flags, without those that are its defaults.

        Each engine has a front end, as ``vllm serve`` starts them by itself.
        """
        degrees: dict[str, Scalar] = {
            "tensor_parallel_size": self.tensor,
            "data_parallel_size": self.data,
            "pipeline_parallel_size": self.pipeline,
            "api_server_count": self.data,
        }
        args = tuple((name, degree) for name, degree in degrees.items() if degree != 1)
        return (*args, ("enable_expert_parallel", True)) if self.experts else args

    def suits(self, stored: ModelFacts) -> bool:
        """Whether heads, layers and groups of weights divide, and there are experts to share."""
        experts = stored.experts is not None
        cut = 1 if self.experts else self.tensor * (self.data if experts else 1)
        block = _BLOCK if stored.stored.scheme == "FP8_BLOCK" else 1
        group = stored.stored.group_size or block
        return (
            stored.heads % self.tensor == 0
            and stored.layers % self.pipeline == 0
            and stored.intermediate_size % (cut * group) == 0
            and (experts or not self.experts)
        )


def parse_parallel(text: str) -> list[Parallelism]:
    """The layouts that ``1,2,tp2xdp4`` names; ``UsageError`` for another word."""
    return [_layout(text, each.strip()) for each in text.split(",")]


def _layout(text: str, word: str) -> Parallelism:
    degrees: dict[str, int] = {}
    *parts, last = word.lower().split("x")
    experts = last == "ep" and bool(parts)
    for part in parts if experts else [*parts, last]:
        match = _WORD.fullmatch(part)
        name = _NAMES[(match[1] or "tp")] if match else ""
        if match is None or name in degrees:
            raise UsageError(f"--parallel {text!r}: {part!r} is not understood", fix=_FORM)
        degrees[name] = int(match[2])
    return Parallelism(**degrees, experts=experts)


def usual_layouts(devices: int | None) -> Iterator[Parallelism]:
    """Every layout of so many GPUs; without a number, tensor and expert parallelism of 1 to 8."""
    if devices is None:
        yield from (Parallelism(tensor=count) for count in _USUAL)
        for count in _USUAL[1:]:
            yield Parallelism(tensor=count, experts=True)
            yield Parallelism(data=count, experts=True)
        return
    for tensor in _divisors(devices):
        for data in _divisors(devices // tensor):
            one = Parallelism(tensor=tensor, data=data, pipeline=devices // tensor // data)
            yield one
            if tensor * data > 1:
                yield Parallelism(tensor=tensor, data=data, pipeline=one.pipeline, experts=True)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
