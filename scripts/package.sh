#!/usr/bin/env bash
# Build dist/ (wheel and sdist) and try the wheel as a user gets it. Called by `make package`.
# Its dependencies get the versions of the lock; the engine and torch are not among them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "package: $*" >&2; exit 1; }
unset PYTHONPATH PYTHONDONTWRITEBYTECODE

"$python" -m hatchling build --clean >/dev/null
"$python" -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir "$work/from-sdist" dist/*.tar.gz
cmp dist/*.whl "$work"/from-sdist/*.whl || fail "the wheel made from the sdist differs"

git ls-files src/whet | sed 's|^src/||' | LC_ALL=C sort >"$work/tracked"
"$python" -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep="\n")' \
    dist/*.whl | LC_ALL=C sort >"$work/shipped"
missing=$(LC_ALL=C comm -23 "$work/tracked" "$work/shipped")
[ -z "$missing" ] || fail "the wheel lacks:" $missing

"$python" -m venv "$work/venv"
grep -oE '^[A-Za-z0-9._-]+==[^ ]+' requirements/run.txt >"$work/constraints.txt"
echo 'torch==0' >>"$work/constraints.txt"  # no such version: pip stops where a dependency wants torch
"$work/venv/bin/pip" install -qq --no-compile --only-binary :all: -c "$work/constraints.txt" dist/*.whl \
    || fail "pip cannot install the wheel; if nothing is wrong above, a dependency asks for torch"

mkdir "$work/empty"
cd "$work/empty"
for command in --help --version "demo --replay"; do
    "$work/venv/bin/whet" $command >"$work/output" 2>&1 \
        || { cat "$work/output" >&2; fail "whet $command failed; its output is above"; }
done
[ -s runs/demo-h200/report.html ] || fail "whet demo --replay wrote no report.html"
XDG_CACHE_HOME=$work/cache "$work/venv/bin/python" -c 'from whet.demo import pair_paths; pair_paths()' \
    || fail "the demo pair cannot be unpacked; the reason is above"
echo "package: $(cd "$OLDPWD" && ls dist | paste -sd' '), installed and tried"
