"""llm-compressor's side of the comparison: ``python peer_llmcompressor.py JOB RESULT``.

Runs in that project's own environment and imports nothing of this one. The recipes are those of
llm-compressor 0.14's own examples; it is fed the same token ids, in the same number, unshuffled.
"""

from __future__ import annotations

import time

_STARTED_NS = time.monotonic_ns()

import json  # noqa: E402
import sys  # noqa: E402
from importlib import metadata  # noqa: E402  the clock starts before anything is imported
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from llmcompressor import oneshot  # noqa: E402
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier  # noqa: E402
from llmcompressor.modifiers.transform.awq import AWQModifier  # noqa: E402
from llmcompressor.pipelines.cache import IntermediatesCache  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

_PACKAGES = ("llmcompressor", "torch", "transformers", "compressed-tensors")
_PRESETS = {("W4A16", 128): "W4A16", ("W4A16_ASYM", 128): "W4A16_ASYM"}


def main():
    """Quantize as the job says, and write where the time went."""
    at = [_STARTED_NS, time.monotonic_ns()]
    job_file, answer = map(Path, sys.argv[1:])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    if not torch.accelerator.is_available():
        # Pinning serves transfers to a device; 0.14 pins without one too, and fails.
        IntermediatesCache.pin_memory = lambda *_args, **_kwargs: None
    model = AutoModelForCausalLM.from_pretrained(job["source"], dtype=job["dtype"])
    tokenizer = AutoTokenizer.from_pretrained(job["source"])
    ids = json.loads(Path(job["ids"]).read_text(encoding="utf-8"))
    at.append(time.monotonic_ns())
    calibrate(model, tokenizer, ids, job)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    at.append(time.monotonic_ns())
    model.save_pretrained(job["out"], save_compressed=True)
    tokenizer.save_pretrained(job["out"])
    at.append(time.monotonic_ns())
    names = ("import_s", "load_s", "work_s", "save_s")
    spent = {name: (end - start) / 1e9 for name, start, end in zip(names, at, at[1:], strict=False)}
    cuda = torch.cuda.is_available()
    result = {
        **spent,
        "resident_bytes": resident_bytes(),
        "allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "samples": len(ids),
        "tokens": sum(map(len, ids)),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }
    answer.write_text(json.dumps(result), encoding="utf-8")


def calibrate(model, tokenizer, ids, job):
    """Quantize ``model`` in place; round-to-nearest is given no data and asks for none."""
    data = {}
    if job["method"] != "rtn":
        masks = [[1] * len(sample) for sample in ids]
        data = {
            "dataset": Dataset.from_dict({"input_ids": ids, "attention_mask": masks}),
            "num_calibration_samples": len(ids),
            "max_seq_length": max(map(len, ids)),
            "shuffle_calibration_samples": False,
            "batch_size": job["batch_size"],
        }
    oneshot(model=model, tokenizer=tokenizer, recipe=recipe(job), **data)


def recipe(job):
    """The modifiers of a method."""
    scheme = _PRESETS.get((job["scheme"], job["group_size"]))
    if scheme is None:
        raise SystemExit(f"no preset is known for {job['scheme']} in groups of {job['group_size']}")
    shared = {"targets": ["Linear"], "scheme": scheme, "ignore": ["lm_head"]}
    awq = AWQModifier(duo_scaling="both")
    return {
        "rtn": [QuantizationModifier(**shared)],
        "awq": [awq, QuantizationModifier(**shared)],
        "gptq": [GPTQModifier(**shared, actorder="static")],
        "awq+gptq": [awq, GPTQModifier(**shared, actorder="static")],
    }[job["method"]]


def resident_bytes():
    """Resident memory at its highest since this program began (``ru_maxrss`` has the parent's)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
