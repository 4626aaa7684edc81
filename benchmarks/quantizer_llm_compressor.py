"""One job of llm-compressor: ``python -I job.py JOB RESULT``, two JSON files.

Runs in llm-compressor's own environment and imports nothing of whet. The job names the 16-bit
checkpoint, the new folder and a file of token ids, which are used as they are: in their order, none
left out. The methods are those of llm-compressor 0.14's own examples.
"""

from __future__ import annotations

import time

_STARTED_NS = time.monotonic_ns()

import ctypes  # noqa: E402  the clock starts before anything is imported
import json  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from importlib import metadata  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

_PR_SET_PDEATHSIG = 1
_PACKAGES = ("llmcompressor", "torch", "transformers", "compressed-tensors")
if sys.platform == "linux":  # before the imports, which take seconds
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

import torch  # noqa: E402
import transformers  # noqa: E402
from compressed_tensors.quantization import preset_name_to_scheme  # noqa: E402
from datasets import Dataset  # noqa: E402
from llmcompressor import oneshot  # noqa: E402
from llmcompressor.modeling.moe.linearize import load_quantizable_moe  # noqa: E402
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier  # noqa: E402
from llmcompressor.modifiers.transform.awq import AWQModifier  # noqa: E402
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier  # noqa: E402
from llmcompressor.pipelines.cache import IntermediatesCache  # noqa: E402


def main() -> None:
    """Quantize as the job says, and write where the time went."""
    at = [_STARTED_NS, time.monotonic_ns()]
    job_file, answer = map(Path, sys.argv[1:])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    if not torch.accelerator.is_available():
        # Pinning serves transfers to a device; 0.14 pins without one too, and fails.
        IntermediatesCache.pin_memory = lambda *_args, **_kwargs: None
    model = load(job)
    ids = json.loads(Path(job["ids"]).read_text(encoding="utf-8"))
    at.append(time.monotonic_ns())
    calibrate(model, ids, job)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    at.append(time.monotonic_ns())
    model.save_pretrained(job["out"], save_compressed=True)
    at.append(time.monotonic_ns())
    names = ("import_s", "load_s", "work_s", "save_s")
    spent = {name: (end - start) / 1e9 for name, start, end in zip(names, at, at[1:], strict=False)}
    cuda = torch.cuda.is_available()
    result = {
        **spent,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "resident_bytes": resident_bytes(),
        "allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "samples": len(ids),
        "tokens": sum(map(len, ids)),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }
    answer.write_text(json.dumps(result), encoding="utf-8")


def load(job: dict[str, Any]) -> Any:
    """The model by the class that config.json names, with the experts of a layer one by one."""
    config = transformers.AutoConfig.from_pretrained(job["source"])
    names = config.architectures or [""]
    usual = transformers.AutoModelForCausalLM
    kind = getattr(transformers, names[0], usual)
    with load_quantizable_moe(kind):
        return kind.from_pretrained(job["source"], dtype=job["dtype"])


def calibrate(model: Any, ids: list[list[int]], job: dict[str, Any]) -> None:
    """Quantize ``model`` in place; without ids no data is given."""
    data: dict[str, Any] = {}
    if ids:
        masks = [[1] * len(sample) for sample in ids]
        data = {
            "dataset": Dataset.from_dict({"input_ids": ids, "attention_mask": masks}),
            "num_calibration_samples": len(ids),
            "max_seq_length": max(map(len, ids)),
            "shuffle_calibration_samples": False,
            "batch_size": job["batch_size"],
            "processor": transformers.AutoTokenizer.from_pretrained(job["source"]),
        }
    oneshot(model=model, recipe=recipe(job), **data)


def recipe(job: dict[str, Any]) -> list[Any]:
    """The modifiers of a method."""
    scheme = preset_name_to_scheme(job["scheme"], ["Linear"])
    if job["group_size"] is not None:
        scheme.weights.group_size = job["group_size"]
    shared = {"config_groups": {"group_0": scheme}, "ignore": job["ignore"]}
    order = {} if job["group_size"] is None else {"actorder": "static"}
    before = {
        "awq": [AWQModifier(duo_scaling="both")],
        "smoothquant": [SmoothQuantModifier(smoothing_strength=0.8)],
    }
    first, *rest = job["method"].split("+")
    feedback = "gptq" in (first, *rest)
    last = GPTQModifier(**shared, **order) if feedback else QuantizationModifier(**shared)
    return [*before.get(first, ()), last]


def resident_bytes() -> int:
    """Resident memory at its highest since this program began (``ru_maxrss`` has the parent's)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
