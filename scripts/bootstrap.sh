#!/usr/bin/env bash
# Creates the environment in the given folder (.venv): needs only Python 3.11 or newer; gets uv if it is missing.
set -euo pipefail
venv=${1:-.venv}
cd "$(dirname "$0")/.."

python=
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
  if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    python=$(command -v "$candidate")
    break
  fi
done
if [ -z "$python" ]; then
  echo "error: Python 3.11, 3.12 or 3.13 is needed and was not found. Install it, or name it: make ... PYTHON=/path/to/python3.11" >&2
  exit 1
fi

# The same Python (3.11, say) built with profile-guided optimisation takes a tenth less CPU: preferred if there is one and the user
# has not named another.
is_optimised() { "$1" -c 'import sys, sysconfig; sys.exit("--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))' 2>/dev/null; }
how="as it is found first"
if [ -n "${PYTHON:-}" ]; then
  how="as you named it"
elif is_optimised "$python"; then
  how="built with profile-guided optimisation"
else
  for candidate in $(type -ap "$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')"); do
    if is_optimised "$candidate"; then
      python=$candidate how="built with profile-guided optimisation"
      break
    fi
  done
fi
echo "taking $python ($("$python" -c 'import platform; print(platform.python_version())'), $how)" >&2

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  uv=.tools/uv/bin/uv
  if [ ! -x "$uv" ]; then
    echo "getting uv (into .tools/) ..." >&2
    "$python" -m venv .tools/uv || { echo "error: $python cannot make virtual environments (Debian: apt-get install python3-venv)" >&2; exit 1; }
    .tools/uv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement scripts/uv.txt
  fi
fi

echo "making the environment in $venv (Airflow, Spark and friends: about a minute the first time) ..." >&2
# Compiled once here: Airflow and Spark start a dozen processes, and without cached bytecode each compiles thousands of modules.
UV_PROJECT_ENVIRONMENT="$venv" "$uv" sync --frozen --compile-bytecode --quiet --python "$python" --no-python-downloads
"$venv/bin/python" -m compileall -q broker plugins spark_jobs
touch "$venv/.ready"
