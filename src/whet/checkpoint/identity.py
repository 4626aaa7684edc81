"""A hash that is equal where two checkpoints hold the same weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from whet.checkpoint.headers import TensorHeader
from whet.core.errors import CheckpointError
from whet.core.units import GIB, KIB, MIB

WHOLE_UP_TO_BYTES: Final = 1 * GIB
SAMPLE_BYTES: Final = 16 * KIB
SAMPLES: Final = 16
MAX_READS: Final = 64 * KIB
_CHUNK_BYTES: Final = 4 * MIB


def hash_weights(
    headers: Mapping[str, TensorHeader], *, whole_up_to_bytes: int = WHOLE_UP_TO_BYTES
) -> str:
    """SHA-256 over every tensor's name, dtype, shape and bytes, in the order of the names.

    How the tensors are spread over files does not matter. Above ``whole_up_to_bytes`` in all, 16
    pages of 16 KiB are read per tensor, first and last included, fewer where there are over 4,096
    large tensors (``MAX_READS``): training, quantizing and merging change nearly every element and
    so every page; a single flipped bit may go undetected.
    """
    samples = _samples(headers, whole_up_to_bytes)
    names = sorted(headers)
    try:
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            digests = list(pool.map(lambda name: _digest(headers[name], samples), names))
    except OSError as error:
        raise CheckpointError(
            f"the weights cannot be read ({error.strerror or error})",
            fix="check the disk and the path",
        ) from error
    total = hashlib.sha256(
        {None: b"whole", SAMPLES: b"sampled"}.get(samples, b"sampled %d" % (samples or 0))
    )
    for name, digest in zip(names, digests, strict=True):
        header = headers[name]
        total.update(f"{name}\0{header.dtype}\0{header.shape}\0".encode() + digest)
    return total.hexdigest()


def _samples(headers: Mapping[str, TensorHeader], whole_up_to_bytes: int) -> int | None:
    """Pages to read of each large tensor; None where all of everything is read."""
    sizes = [header.size_bytes for header in headers.values()]
    if sum(sizes) <= whole_up_to_bytes:
        return None
    large = sum(size > SAMPLES * SAMPLE_BYTES for size in sizes)
    return min(SAMPLES, max(1, MAX_READS // max(large, 1)))


def _digest(header: TensorHeader, samples: int | None) -> bytes:
    """The hash of one tensor's bytes, or of pages spread evenly over them."""
    state = hashlib.sha256()
    with header.file.open("rb", buffering=0) as file:
        for start, size in _spans(header, samples):
            file.seek(start)
            state.update(file.read(size))
    return state.digest()


def _spans(header: TensorHeader, samples: int | None) -> Iterator[tuple[int, int]]:
    if samples is None or header.size_bytes <= SAMPLES * SAMPLE_BYTES:
        for start in range(header.start, header.end, _CHUNK_BYTES):
            yield start, min(_CHUNK_BYTES, header.end - start)
        return
    stride = (header.size_bytes - SAMPLE_BYTES) / max(samples - 1, 1)
    for index in range(samples):
        yield header.start + round(index * stride), SAMPLE_BYTES
