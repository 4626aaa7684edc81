#!/usr/bin/env bash
# Packs a slim, relocatable SGLang 0.5.17 (CUDA 13, Hopper, with FlashAttention 3) for a GPU host that has no network:
# Python 3.12 with torch 2.11.0+cu130, triton 3.6.0 and nvcc 13.0 already on it.
#
#   pack_sglang.sh OUT_DIR [PART_MIB]   writes OUT_DIR/p0, p1, … each with one part of at most PART_MIB (28)
#
# On the host, copy the part_* files of all folders into one folder and run unpack.sh (it is in p0) there.
set -euo pipefail
out=${1:?usage: pack_sglang.sh OUT_DIR [PART_MIB]}
part_mib=${2:-28}
cache=${SGLANG_PACK_CACHE:-${TMPDIR:-/tmp}/sglang-gpu-pack}
mkdir -p "$cache" "$out"
out=$(cd "$out" && pwd)

cat > "$cache/requirements.txt" <<'REQUIREMENTS'
# What SGLang 0.5.17 (CUDA 13) needs beside a host's own Python 3.12, torch 2.11.0+cu130, triton 3.6.0, numpy, numba, scipy,
# psutil, pandas, nvidia-ml-py, huggingface_hub and the rest of a usual CUDA image. sglang 0.5.17 pins transformers 5.12.1:
# with 5.17 its import ends ("'qwen3_asr' is already used by a Transformers config"), and 5.12.1 takes tokenizers below 0.23.
transformers==5.12.1
tokenizers==0.22.2
aiohappyeyeballs==2.7.1
aiohttp==3.14.5
aiosignal==1.4.0
annotated-doc==0.0.7
annotated-types==0.8.0
apache-tvm-ffi==0.1.11
attrs==26.1.0
cffi==2.1.1
charset-normalizer
compressed-tensors==0.17.0
dill==0.4.1
distro==1.9.0
einops==0.8.2
fastapi==0.165.0
frozenlist==1.8.0
gguf==0.19.0
ipython==9.18.1
jsonschema==4.26.0
jsonschema-specifications==2025.9.1
loguru==0.7.3
msgspec==0.22.0
multidict==7.2.1
ninja
openai==2.6.1
opentelemetry-api==1.45.2
orjson==3.13.0
partial-json-parser==0.2.1.1.post7
pillow==13.0.0
prometheus-client==0.26.0
propcache==0.5.4
pybase64==1.5.1
pycparser==3.12
pydantic==2.14.4
pydantic-core==2.50.5
python-multipart==0.0.34
pyzmq==27.3.0
referencing==0.37.0
requests==2.34.2
rpds-py==2026.9.1
sentencepiece==0.2.3
setproctitle==1.3.8
sgl-deep-gemm==0.1.5.post1
sniffio==1.3.1
soundfile==0.13.1
starlette==1.10.0
torchvision==0.26.0
traitlets==5.16.1
typing-inspection==0.4.5
urllib3==2.8.0
uvicorn==0.54.0
uvloop==0.23.0
xgrammar==0.2.1
yarl==1.25.1
REQUIREMENTS
cat > "$cache/unpack.sh" <<'UNPACK'
#!/usr/bin/env bash
# Run on the GPU host, in the folder that holds all part_* files:  unpack.sh [SITE_DIR]; then: source SITE_DIR/env.sh
set -euo pipefail
site=${1:-/tmp/sglang-site}
mkdir -p "$site"
cat part_* | xz -d -T0 | tar xf - -C "$site"
cuda=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")}
{
  echo "export PYTHONPATH=$site\${PYTHONPATH:+:\$PYTHONPATH} PATH=$site/bin:$cuda/bin:\$PATH CUDA_HOME=$cuda"
  echo "export HF_HUB_OFFLINE=1 FLASHINFER_CUDA_ARCH_LIST=9.0a TORCH_CUDA_ARCH_LIST=9.0a"
  echo "unset PYTHONDONTWRITEBYTECODE"
} > "$site/env.sh"
chmod +x "$site"/bin/*
printf '#!/usr/bin/env bash\n# A Python that has SGLang: engine.python of a spec.\nunset PYTHONPATH\nsource %q/env.sh\nexec python3 "$@"\n' "$site" > "$site/python"
chmod +x "$site/python"
"$site/python" "$site/smoke.py"
UNPACK
cat > "$cache/smoke.py" <<'SMOKE'
"""Import all that a dense Llama server imports, and FlashAttention 3. Without a GPU it acts as if a Hopper one were there."""
import importlib
import sys

import torch

GPU = torch.cuda.is_available()
if not GPU:
    class Hopper:
        major, minor, name, multi_processor_count, total_memory = 9, 0, "NVIDIA H100", 132, 80 << 30

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: Hopper.name
    torch.cuda.get_device_properties = lambda *_: Hopper
    torch.cuda.mem_get_info = lambda *_: (79 << 30, 80 << 30)
    torch.cuda.init = lambda: None
MODULES = """
sgl_kernel sgl_kernel.flash_attn flashinfer xgrammar compressed_tensors ninja
sglang.launch_server sglang.srt.entrypoints.http_server sglang.srt.entrypoints.engine sglang.srt.managers.scheduler
sglang.srt.managers.detokenizer_manager sglang.srt.model_executor.model_runner sglang.srt.models.llama
sglang.srt.models.llama_eagle3 sglang.srt.layers.quantization.compressed_tensors.compressed_tensors
sglang.srt.layers.quantization.awq.awq sglang.srt.layers.quantization.fp8 sglang.srt.layers.quantization.marlin_utils
sglang.srt.layers.attention.flashattention_backend sglang.srt.layers.attention.triton_backend
sglang.srt.layers.attention.flashinfer_backend sglang.srt.layers.attention.dsa_backend sglang.srt.layers.sampler sglang.srt.speculative.eagle_worker_v2
sglang.srt.speculative.ngram_worker sglang.srt.speculative.standalone_worker_v2
"""
failed = 0
for name in MODULES.split():
    try:
        importlib.import_module(name)
    except Exception as error:
        failed += 1
        print(f"FAILED {name}: {type(error).__name__}: {error}".strip().splitlines()[0])
if GPU:
    torch.zeros(1, device="cuda")
import sglang
import transformers

print(f"SGLang {sglang.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, "
      f"{'a GPU' if GPU else 'no GPU'}: {len(MODULES.split()) - failed} modules imported, {failed} failed")
sys.exit(failed > 0)
SMOKE

pip_args=(--quiet --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp)
for tag in 1 2010 2014 _2_17 _2_18 _2_24 _2_27 _2_28 _2_31 _2_34 _2_35; do
  pip_args+=(--platform "manylinux${tag}_x86_64")
done

if [[ ! -f $cache/site.tar.xz ]]; then
  rm -rf "$cache/site"
  ${PIP:-pip} install "${pip_args[@]}" --target "$cache/site" sglang==0.5.17 sglang-kernel==0.4.5 \
    flashinfer_python==0.6.15.post1 -r "$cache/requirements.txt" 2> >(grep -v WARNING >&2)
  cd "$cache/site"
  # What is left out is for Blackwell (sm100), for MLA models and for sparse attention.
  rm -rf sgl_kernel/sm100 sgl_kernel/flashmla_ops.abi3.so sgl_kernel/infllm_ops*.so
  find . -name '*.so*' -type f -exec strip --strip-unneeded {} + 2>/dev/null || true
  cp "$cache/smoke.py" .
  tar cf - . | nice -n 19 xz -T2 -9 > "$cache/site.tar.xz.tmp"
  mv "$cache/site.tar.xz.tmp" "$cache/site.tar.xz"
fi
rm -rf "$out"/p[0-9]*
split --numeric-suffixes --suffix-length=2 --bytes="${part_mib}M" "$cache/site.tar.xz" "$out/part_"
for part in "$out"/part_*; do
  folder=$out/p$((10#${part##*_}))
  mkdir -p "$folder" && mv "$part" "$folder/"
done
cp "$cache/unpack.sh" "$out/p0/"
du -sh "$out"/p* | sort -V -k2
