"""The two sides of a comparison: a server, a checkpoint that whet serves, a saved baseline."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import locate, locate_without_weights, read_facts, tokenizer_difference
from whet.checkpoint.doubts import kv_scales_problem
from whet.client import HttpError, get_json
from whet.core.errors import InfeasibleError, StorageError, UsageError
from whet.core.outside import read_json
from whet.core.records.codec import decode
from whet.core.records.engine import ResolvedEngine
from whet.core.records.model import ModelFacts
from whet.core.records.quality import QualityRecord
from whet.core.server_url import split_server_url
from whet.core.spec import EngineSpec
from whet.core.staging import staged
from whet.core.store import translate_disk_errors, write_json
from whet.flow.model_entry import model_entry, tokenizer_here
from whet.flow.serving import plain_variant, resolve_alone
from whet.quality import PlainReference
from whet.quality.harness import HarnessRun

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_BARE_URL: Final = re.compile(r"[\w.-]+:\d+(/.*)?")
BASELINE: Final = "baseline"
"""The baseline's name in records and file names."""
ARRAYS, INPUTS, TOKENIZER = "arrays", "inputs", "tokenizer"
HELDOUT, TASKS = "heldout.jsonl", "tasks.jsonl"
_FILE: Final = "baseline.json"
_TOKENIZER_FILES: Final = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("generation_config.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.*"),
)
"""``config.json`` is included for the ids that end an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A measured server: the user's name for it (``ref``) and the model that answered.

    ``settings`` are the engine and arguments that whet served it with, ``weights_sha256`` is of
    the served folder; both None for an external server.
    """

    ref: str
    model: str
    engine_version: str | None = None
    weights_sha256: str | None = None
    settings: str | None = None

    def computes_as(self, other: Endpoint) -> bool:
        """Return whether whet served the same weights in the same way.

        The precision of an external server is unknown.
        """
        here, there = ((each.weights_sha256, each.settings) for each in (self, other))
        return here == there and self.settings is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBaseline:
    """A measured baseline with its ``quality`` options.

    ``plain`` are the answers to compare a speculating deployment with, if they were measured.
    """

    taken_at: str
    side: Endpoint
    quality: Mapping[str, Any]
    record: QualityRecord
    plain: PlainReference | None = None
    harness: HarnessRun | None = None


def refuse_filled(folder: Path) -> None:
    """Raise ``StorageError`` for a folder that is not empty: nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(
            f"{folder} exists",
            fix="compare a deployment with it by --against, remove it, or choose another --save",
        )


def write_baseline(
    folder: Path, saved: SavedBaseline, *, scratch: Path, tokenizer: Path, inputs: dict[str, Path]
) -> None:
    """Write the folder, whole or not at all; ``scratch`` holds the arrays."""
    refuse_filled(folder)
    with staged(folder) as stage, translate_disk_errors(folder):
        into = stage.folder
        (into / INPUTS).mkdir()
        (into / TOKENIZER).mkdir()
        copy_arrays(scratch, into)
        for name, path in inputs.items():
            shutil.copyfile(path, into / INPUTS / name)
        for pattern in _TOKENIZER_FILES:
            for file in tokenizer.glob(pattern):
                shutil.copyfile(file, into / TOKENIZER / file.name)
        write_json(into / _FILE, saved)
        stage.keep()


def read_baseline(folder: Path) -> SavedBaseline:
    """Read a saved baseline; ``UsageError`` without one, ``StorageError`` if damaged."""
    path = folder / _FILE
    try:
        saved = decode(SavedBaseline, read_json(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} holds no saved baseline",
            fix=f"make one with whet quality BASELINE --save {folder}",
        ) from error
    except (OSError, ValueError, StorageError) as error:
        raise StorageError(
            f"{path} is damaged or of another version of whet", fix="measure the baseline again"
        ) from error
    for each in (folder / INPUTS / HELDOUT, folder / INPUTS / TASKS, folder / TOKENIZER):
        if not each.exists():
            raise StorageError(f"{each} is missing", fix="measure the baseline again with --save")
    return saved


def copy_arrays(source: Path, target: Path) -> None:
    """Copy the baseline's arrays from one folder's to another's."""
    with translate_disk_errors(target / ARRAYS):
        for file in (source / ARRAYS).glob(f"{BASELINE}.*"):
            (target / ARRAYS).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / ARRAYS / file.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A server or checkpoint before it is measured; a checkpoint has ``facts`` and no ``url``.

    ``tokenizer`` is the folder of its tokenizer if it is on this machine. ``max_length`` is the
    number of tokens that the server accepts per request, reply included, if it says so.
    """

    ref: str
    url: str | None = None
    model: str | None = None
    engine_version: str | None = None
    tokenizer: Path | None = None
    facts: ModelFacts | None = None
    max_length: int | None = None

    @property
    def defects(self) -> tuple[str, ...]:
        """Defects of the checkpoint's files, independent of the server."""
        problem = None if self.facts is None else kv_scales_problem(Path(self.facts.path))
        return () if problem is None else (problem,)


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveEndpoint:
    """A server at ``url``; ``ensure_alive`` raises if it is whet's and has ended.

    ``max_length`` as in ``Candidate``.
    """

    url: str
    side: Endpoint
    max_length: int | None
    ensure_alive: Callable[[], None] = lambda: None


def find_candidate(ref: str, model: str | None, *, flag: str) -> Candidate:
    """Reach the server, or read the checkpoint; nothing is started. ``flag`` sets its model.

    Raises ``EngineLostError`` for a server that does not answer, ``UsageError`` for a model that it
    lacks, ``CheckpointError`` for a folder that holds none.
    """
    if _URL.match(ref) is None:
        if _BARE_URL.fullmatch(ref) and not Path(ref).exists():
            raise UsageError(f"{ref} is not a folder", fix=f"for a server write http://{ref}")
        facts = read_facts(locate(ref))
        if model is not None:
            raise UsageError(
                f"{flag} names a server's model, and {ref} is a folder", fix="leave it out"
            )
        return Candidate(ref=ref, tokenizer=Path(facts.path), facts=facts)
    split_server_url(ref)
    entry = model_entry(ref, model, flag)
    length = entry.get("max_model_len")
    return Candidate(
        ref=ref,
        url=ref,
        model=str(entry["id"]),
        engine_version=_version(ref),
        tokenizer=tokenizer_here(entry),
        max_length=length if isinstance(length, int) and length > 0 else None,
    )


def find_tokenizer(given: str | None, candidate: Candidate) -> Path:
    """Return the folder of the prompts' tokenizer; ``UsageError`` if it is not local."""
    if given is not None:
        return locate_without_weights(given)
    if candidate.tokenizer is None:
        raise UsageError(
            f"prompts need the baseline's tokenizer, and {candidate.ref} names no local folder",
            fix="give its folder or hub id with --tokenizer",
        )
    return candidate.tokenizer


def refuse_other_tokenizer(candidate: Candidate, baseline: Path) -> None:
    """Raise ``InfeasibleError`` if the target's tokenizer files differ from the baseline's.

    A tokenizer that is not local is compared through its server.
    """
    if candidate.tokenizer is None or candidate.tokenizer.resolve() == baseline.resolve():
        return
    problem = tokenizer_difference(
        baseline, candidate.tokenizer, names=("baseline", "target"), serving=True
    )
    if problem is not None:
        raise InfeasibleError(
            f"{candidate.ref} has another tokenizer than the baseline: {problem}",
            fix="fix it, or compare it with a baseline of the same tokenizer",
        )


@contextmanager
def serve_candidate(
    candidate: Candidate, *, tokens: int, spec: EngineSpec, log: Path
) -> Iterator[LiveEndpoint]:
    """Yield the running server, or serve the checkpoint with room for ``tokens`` per request.

    Raises ``EngineStartError`` if no engine is installed or it cannot serve the checkpoint.
    """
    if candidate.url is not None:
        side = Endpoint(
            ref=candidate.ref, model=str(candidate.model), engine_version=candidate.engine_version
        )
        yield LiveEndpoint(url=candidate.url, side=side, max_length=candidate.max_length)
        return
    assert candidate.facts is not None
    facts, length = candidate.facts, min(tokens, candidate.facts.max_position)
    # The recipe is unknown; the stored scheme selects the kernels.
    variant = plain_variant(
        Path(facts.path), spec, max_model_len=length, scheme=facts.stored.scheme
    )
    engine, resolved = resolve_alone(variant, spec)
    with engine.serve(resolved, log=log) as server:
        side = Endpoint(
            ref=candidate.ref,
            model=server.model_name,
            engine_version=resolved.engine_version,
            weights_sha256=facts.weights_sha256,
            settings=_settings(resolved),
        )
        yield LiveEndpoint(
            url=server.base_url, side=side, max_length=length, ensure_alive=server.ensure_alive
        )


def _settings(resolved: ResolvedEngine) -> str:
    """Return everything that could change a result; ``max_model_len`` does not."""
    args = dict(resolved.variant.engine_args)
    words = [f"{key}={args[key]}" for key in sorted(args) if key != "max_model_len"]
    return " ".join([resolved.title, *words])


def _version(url: str) -> str | None:
    try:
        version = get_json(url, "/version").get("version")
        return version if isinstance(version, str) else None
    except (HttpError, ValueError, AttributeError):
        return None
