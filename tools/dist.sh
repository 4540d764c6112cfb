#!/usr/bin/env bash
# sdist and wheel in dist/, and both tried: the wheel is built from the sdist, and installed in a new environment with
# vLLM's CPU build and what the lock file has beside it, where `doctor` must find nothing wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist
# No isolation: what builds is locked, like everything else.
.venv/bin/python -m build --no-isolation --sdist --outdir dist .
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
tar -xzf dist/*.tar.gz -C "$work" --strip-components 1 --one-top-level=source
.venv/bin/python -m build --no-isolation --wheel --outdir dist "$work/source"
"${PYTHON:-python3}" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --no-deps --disable-pip-version-check -q)
torch="$(grep -o '^torch==[^ ;]*' requirements/cpu.txt)"
"${pip[@]}" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch"
"${pip[@]}" -r <(grep -v '^torch==' requirements/cpu.txt)
"${pip[@]}" --no-build-isolation requirements/vllm-cpu-name requirements/torchvision-ops
"${pip[@]}" dist/*.whl
cd "$work"
env -u PYTHONPATH "$work/venv/bin/confident-decoding" doctor
env -u PYTHONPATH "$work/venv/bin/python" - <<'END'
import confident_decoding
from importlib.metadata import entry_points
assert "venv" in confident_decoding.__file__, confident_decoding.__file__
assert any(e.name == "confident_decoding" for e in entry_points(group="vllm.general_plugins"))
END
echo "dist/ is good: $(cd - > /dev/null; ls dist | tr '\n' ' ')"
