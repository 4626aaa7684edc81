#!/usr/bin/env bash
# Packs what lab/sittings/two_layouts.yaml needs beside vLLM on a GPU host without a network (Python 3.12, CUDA 13):
# Ray without its libraries, and NIXL (the package and its CUDA 13 half) without the kernels of expert parallelism.
#
#   pack_two_gpus.sh OUT_DIR [PART_MIB]   writes OUT_DIR/p0, p1, … each with one part of at most PART_MIB (28)
#
# On the host: cat the part_* files of all folders | xz -d | tar xf - -C SITE, and put SITE on PYTHONPATH.
set -euo pipefail
out=${1:?usage: pack_two_gpus.sh OUT_DIR [PART_MIB]}
part_mib=${2:-28}
cache=${TWO_GPUS_CACHE:-${TMPDIR:-/tmp}/two-gpus-pack}
mkdir -p "$cache/wheels" "$out"
out=$(realpath "$out")
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64)
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
  -d "$cache/wheels" ray==2.60.0 nixl==1.5.1 nixl-cu13==1.5.1 msgpack protobuf filelock packaging
rm -rf "$cache/site" "$out"/p[0-9]*
mkdir "$cache/site"
for wheel in "$cache"/wheels/*.whl; do unzip -qo "$wheel" -d "$cache/site"; done
cd "$cache/site"
rm -rf ray/{rllib,tune,serve,train,data,air,llm,jars,cpp,dag/tests,dashboard/client} nixl_ep* ./*/nixl_ep*
find . -name tests -type d -prune -exec rm -rf {} +
tar cf - . | xz -T0 -6 | split -d --bytes="${part_mib}M" - "$cache/part_"
for part in "$cache"/part_*; do
  folder=$out/p$((10#${part##*_}))
  mkdir -p "$folder"
  mv "$part" "$folder/"
done
du -sh "$out"
