"""The likeliest tokens at every held-out position, in arrays and in the baseline's file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import StorageError, UsageError
from whet.core.store import write_atomic

_FORM: Final = 1
_NO_TOKEN: Final = -1
_AGAIN: Final = "measure the baseline again"

Named = Sequence[tuple[int, float]]
"""(token id, log-probability) of each token that a server named at one position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopDocument:
    """What a server named at the T − 1 predicted positions of one document of T tokens.

    ``ids`` int32 and ``logprobs`` float32 (nats) are both [T − 1, K + 1], likeliest first; the
    prompt's own token stands among them or in the last column. −1 and NaN fill what is not named.
    ``own`` [T − 1] float32 is the log-probability of the prompt's own token.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    own: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class TopLogprobs:
    """One server's ``top_k`` likeliest tokens over all documents.

    ``data_sha256`` is the quality record's: only two that agree in it may be compared.
    """

    top_k: int
    data_sha256: str
    documents: Sequence[TopDocument]


def pack(positions: Sequence[Named], own: Sequence[float], top_k: int) -> TopDocument:
    """Arrays of what was named at each position; at most ``top_k`` + 1 of a position are kept."""
    shape = (len(positions), top_k + 1)
    ids = np.full(shape, _NO_TOKEN, dtype=np.int32)
    logprobs = np.full(shape, np.nan, dtype=np.float32)
    for row, named in enumerate(positions):
        # Python's sort is stable: of equal ones the server's order stays.
        likeliest = sorted(named, key=lambda pair: -pair[1])[: top_k + 1]
        ids[row, : len(likeliest)] = [token for token, _ in likeliest]
        logprobs[row, : len(likeliest)] = [logprob for _, logprob in likeliest]
    return TopDocument(ids=ids, logprobs=logprobs, own=np.asarray(own, dtype=np.float32))


def write_top_logprobs(path: Path, top: TopLogprobs) -> None:
    """Write ``top`` to a ``.npz`` file, whole or not at all. ``StorageError`` for a full disk."""
    documents = list(top.documents)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        form=np.int64(_FORM),
        top_k=np.int64(top.top_k),
        data_sha256=np.array(top.data_sha256),
        positions=np.array([len(one.own) for one in documents], dtype=np.int64),
        ids=_joined([one.ids for one in documents], (0, top.top_k + 1), np.int32),
        logprobs=_joined([one.logprobs for one in documents], (0, top.top_k + 1), np.float32),
        own=_joined([one.own for one in documents], (0,), np.float32),
    )
    write_atomic(path, buffer.getvalue())


def read_top_logprobs(path: Path, data_sha256: str) -> TopLogprobs:
    """The stored figures of ``data_sha256``; the arrays are read when the first one is used.

    Raises ``UsageError`` where the file is for other text, tasks or token ids and ``StorageError``
    where it is missing or damaged; damage of the arrays shows at their first use.
    """
    with _opened(path) as file:
        found = str(file["data_sha256"])
        top_k, positions = int(file["top_k"]), file["positions"].tolist()
        if int(file["form"]) != _FORM:
            raise StorageError(f"{path} was written by another version of whet; {_AGAIN}")
    if found != data_sha256:
        raise UsageError(
            f"{path} holds log-probabilities of other text, tasks or token ids; {_AGAIN} with "
            "these files and this tokenizer"
        )
    return TopLogprobs(
        top_k=top_k, data_sha256=found, documents=_Stored(path, positions, top_k + 1)
    )


class _Stored(Sequence[TopDocument]):
    """The documents of a file, as views of arrays that are read once, when one is asked for."""

    def __init__(self, path: Path, positions: Sequence[int], width: int) -> None:
        self._path = path
        self._starts = [0, *np.cumsum(positions).tolist()]
        self._width = width
        self._arrays: tuple[Any, Any, Any] | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> TopDocument: ...
    @overload
    def __getitem__(self, index: slice) -> list[TopDocument]: ...
    def __getitem__(self, index: int | slice) -> TopDocument | list[TopDocument]:
        if isinstance(index, slice):
            return [self[one] for one in range(len(self))[index]]
        one = range(len(self))[index]
        if self._arrays is None:
            self._arrays = self._read()
        part = slice(self._starts[one], self._starts[one + 1])
        ids, logprobs, own = self._arrays
        return TopDocument(ids=ids[part], logprobs=logprobs[part], own=own[part])

    def _read(self) -> tuple[Any, Any, Any]:
        with _opened(self._path) as file:
            arrays = file["ids"], file["logprobs"], file["own"]
        table = (self._starts[-1], self._width)
        if [array.shape for array in arrays] != [table, table, table[:1]]:
            raise StorageError(f"{self._path} is damaged; {_AGAIN}")
        return arrays


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except FileNotFoundError as error:
        raise StorageError(f"no stored log-probabilities at {path}; {_AGAIN}") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} is damaged or no file of whet; {_AGAIN}") from error


def _joined(arrays: Sequence[Any], empty: tuple[int, ...], kind: type[np.generic]) -> Any:
    return np.concatenate([np.empty(empty, dtype=kind), *arrays])
