"""Several servers of one variant behind a router."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from whet.core.records.engine import Layout
from whet.core.spec.base import Positive, Strict


class LayoutSpec(Strict):
    """``replicas`` alike, or ``prefill`` servers that compute prompts for ``decode`` servers."""

    replicas: Annotated[
        Positive | None, Field(description="Servers that take requests in turn; 2 or more.")
    ] = None
    prefill: Annotated[Positive | None, Field(description="Servers that compute prompts.")] = None
    decode: Annotated[Positive | None, Field(description="Servers that generate answers.")] = None
    connector: Annotated[
        Literal["NixlConnector", "ExampleConnector"],
        Field(description="What hands the KV cache over; ExampleConnector (files) is slow."),
    ] = "NixlConnector"

    @model_validator(mode="after")
    def _one_kind(self) -> LayoutSpec:
        split = (self.prefill, self.decode)
        if self.replicas is None and None not in split:
            return self
        if self.replicas is not None and self.replicas > 1 and split == (None, None):
            return self
        raise ValueError("give replicas (2 or more), or prefill and decode")

    @property
    def record(self) -> Layout:
        """As it is resolved."""
        if self.prefill is None:
            return Layout(decode=self.replicas or 1)
        return Layout(prefill=self.prefill, decode=self.decode or 1, connector=self.connector)
