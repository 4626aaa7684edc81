"""The peer is given the sizes of the shape that was measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy import Row, peer_sizes, peer_words
from lab.sizes import SHAPES, Sizes

from tests.predict.builders import gpu, model, variant
from whet.predict.performance import Limits, Request, Work, work_of
from whet.predict.performance.observe import Latencies, Observation
from whet.predict.settings import read_settings


def work(sizes: Sizes, **args: Any) -> Work:
    """Of a testbed of this shape."""
    facts = model(
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        vocab_size=sizes.vocabulary,
        parameters=sizes.parameters(),
        kv_bytes_per_token=4 * sizes.layers * sizes.kv_heads * sizes.head_dim,
    )
    return work_of(facts, read_settings(variant(**args), target=facts, device=gpu(80)))


@pytest.mark.parametrize(
    ("args", "cache"),
    [
        ({}, "bfloat16"),
        ({"kv_cache_dtype": "fp8"}, "fp8"),
        ({"tensor_parallel_size": 2}, "bfloat16"),
        ({"tensor_parallel_size": 2, "kv_cache_dtype": "fp8"}, "fp8"),
    ],
)
@pytest.mark.parametrize("shape", ["1b", "3b", "7b", "13b"])
def test_a_shape_is_the_peers_too(
    shape: str, args: dict[str, Any], cache: str, tmp_path: Path
) -> None:
    sizes = SHAPES[shape]
    row = Row(
        group="g",
        gpu="H200",
        engine="vLLM",
        part="held out",
        observation=Observation(
            group="fp16",
            work=work(sizes, **args),
            draft=None,
            limits=Limits(batched_tokens=8192, max_seqs=256, kv_tokens=1),
            requests=(Request(prompt=100, output=10),),
            in_flight=8,
            measured=Latencies(ttft=1.0, tpot=1.0, e2e=1.0),
        ),
    )
    words = peer_words(row, tmp_path)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--kvcache-quant-mode"] == cache
    assert options["--tp-size"] == str(args.get("tensor_parallel_size", 1))
    config = json.loads((Path(options["--model-path"]) / "config.json").read_text())
    assert config["num_key_value_heads"] == sizes.kv_heads
    assert config["intermediate_size"] == sizes.intermediate


def test_an_unknown_shape_ends_with_the_fix() -> None:
    with pytest.raises(SystemExit, match=r"no testbed has .*; add its shape to lab/sizes"):
        peer_sizes(replace(work(SHAPES["7b"]), hidden_bytes=1.0))
