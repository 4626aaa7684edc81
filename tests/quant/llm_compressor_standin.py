"""What whet takes for a Python with llm-compressor: ``-I -c …`` and ``-I job.py JOB ANSWER``.

It writes NVFP4 in the layout of compressed-tensors, with codes of zero. ``STAND_IN`` is what goes
wrong.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from math import prod
from pathlib import Path

MODE = os.environ.get("STAND_IN", "")
NOT_A_NUMBER = b"\x00\x00\xc0\x7f"
ONE = struct.pack("<f", 1.0)
GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "group_size": 16},
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
}
CLAIM = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {"group_0": GROUP},
    "ignore": ["lm_head"],
}


def read(file: Path) -> dict[str, tuple[str, list[int], bytes]]:
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, each in header.items():
        start, end = each["data_offsets"]
        tensors[name] = (each["dtype"], each["shape"], data[8 + size + start : 8 + size + end])
    return tensors


def write(file: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    file.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())
    )
    file.chmod(0o600)


def quantized(name: str, shape: list[int]) -> dict[str, tuple[str, list[int], bytes]]:
    outputs, inputs = shape
    stem = name.removesuffix("weight")
    packed, groups = [outputs, inputs // 2], [outputs, inputs // 16]
    scale = NOT_A_NUMBER if MODE == "nan" else ONE
    return {
        f"{stem}weight_packed": ("U8", packed, bytes(prod(packed))),
        f"{stem}weight_scale": ("F8_E4M3", groups, b"\x38" * prod(groups)),
        f"{stem}weight_global_scale": ("F32", [1], scale),
        f"{stem}input_global_scale": ("F32", [1], ONE),
    }


def main() -> None:
    if sys.argv[2] == "-c":
        print({"none": "", "old": "0.13.2"}.get(MODE, "0.14.0"))
        sys.exit(MODE == "none")
    job = json.loads(Path(sys.argv[3]).read_text())
    print("\r(2/3): Calibrating:   0%", flush=True)
    if MODE == "fail":
        print("Traceback (most recent call last):\nValueError: no such modifier", flush=True)
        sys.exit(1)
    if MODE == "killed":
        os.kill(os.getpid(), 9)
    if MODE == "hang":
        child = subprocess.Popen(["sleep", "600"])
        Path(os.environ["STAND_IN_PIDS"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    source, out = Path(job["source"]), Path(job["out"])
    out.mkdir()
    tensors = {}
    for name, (dtype, shape, data) in read(source / "model.safetensors").items():
        inside = ".layers." in name and len(shape) == 2
        if MODE == "lost" and name.endswith("norm.weight"):
            continue
        left = MODE == "half" and ".layers.1." in name
        if inside and MODE != "plain" and not left:
            tensors.update(quantized(name, shape))
        else:
            tensors[name] = (dtype, shape, data)
    write(out / "model.safetensors", tensors)
    (out / "recipe.yaml").write_text("not taken over")
    claim = {} if MODE == "plain" else {"quantization_config": CLAIM}
    (out / "config.json").write_text(json.dumps({"model_type": "rewritten", **claim}))
    ids = json.loads(Path(job["ids"]).read_text())
    (source.parent / "seen.json").write_text(json.dumps({**job, "ids": ids}))
    spent = {"import_s": 1.0, "load_s": 2.0, "work_s": 3.0, "save_s": 4.0}
    answer = {**spent, "device": "cpu", "allocated_bytes": None}
    Path(sys.argv[4]).write_text(json.dumps(answer))


main()
