#!/bin/sh
# Print the Python for `make`: $PYTHON, else .venv's own, else the first of 3.11 to 3.13, else uv's.
range='import sys; print(sys.executable); sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
if [ -n "$PYTHON" ]; then
    set -- "$PYTHON"
else
    set -- .venv/bin/python python3 python3.13 python3.12 python3.11
fi
for name; do
    if python=$("$name" -c "$range" 2>/dev/null); then
        echo "$python"
        exit
    fi
done
if [ -n "$PYTHON" ]; then
    echo "setup: PYTHON=$PYTHON is not Python 3.11 to 3.13; name another one" >&2
    exit 1
fi
if command -v uv >/dev/null; then
    uv python install 3.12 >&2 && uv python find --system --managed-python 3.12 && exit
    echo "setup: uv cannot install Python 3.12; its message is above" >&2
    exit 1
fi
echo "setup: no Python 3.11 to 3.13 on the PATH; install one, or uv (https://docs.astral.sh/uv/)," \
    "which brings it, or name yours: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
