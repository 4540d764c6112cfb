#!/usr/bin/env bash
# What is measured and checked on a GPU, part by part, from the root of the repository:
#
#   bash benchmarks/on_gpu.sh PART OUT [SECONDS]
#
# PART is one of those below; results go to the folder OUT, which benchmarks/results takes them from. SECONDS ends the
# part early, with what it has. vLLM and this package must be importable; COMMIT names the commit where there is no git.
# An H200 machine with 16 cores takes the minutes that stand beside each part.
set -uo pipefail
part=$1 out=$2 limit=${3:-3600}
mkdir -p "$out"
export OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=2
run() { timeout --kill-after=30 "$limit" python3 -m "$@"; }

case $part in
kernels)     # 5: every kernel against its twin, compiled; graphs of scans
  run pytest -q -p no:cacheprovider -m "not slow and not engine and not server" \
    tests/kernels tests/test_replay.py tests/test_device_scan.py ;;
checks)      # 12: engines against each other, many at a time; CHECKS: only these
  run benchmarks.gpu_check --jobs 16 --out "$out/checks.jsonl" ${CHECKS:-quantised update lora requests drafters exact \
    eagle3 sleep graphs asynchronous sync cache invariant} > "$out/checks.log" 2>&1
  python3 - "$out/checks.jsonl" <<'SUMMARY'
import json, sys
for line in map(json.loads, open(sys.argv[1])):
    print("PASS" if line["passed"] else "FAIL", line["check"], line["name"], line["detail"][:300 - 240 * line["passed"]])
SUMMARY
  grep "exit status" "$out/checks.log" ;;
ranks)       # 6: ranks, on one GPU where there are not more
  run benchmarks.gpu_check --jobs 3 --out "$out/ranks.jsonl" experts context parallel 2>&1 | tee "$out/ranks.log" | grep -E "^(PASS|FAIL|   )" ;;
ranks-of-4)  # 7: depths of four ranks over 500 steps, bytes between them
  run benchmarks.gpu_parallel --tensor-parallel-size 4 --steps 500 --out "$out/parallel-tp4.json" 2>&1 | tee "$out/tp4.log" | grep -E "PASS|FAIL|bytes|sharded" ;;
steps)       # 7: docs/performance.md, ms of whole steps
  run benchmarks.overhead --shape qwen3-8b --compiled --forced paper smollm2 --batch 1 8 32 64 128 256 \
    --settings planned "threshold 0.01" metrics p=0 --tokens 64 --prefill 8192 --memory --split \
    --out "$out/overhead-tp1.json" > "$out/steps.log" 2>&1
  tail -15 "$out/steps.log" ;;
tables)      # 4: docs/performance.md, kernels and head calls alone
  run benchmarks.kernels --out "$out/kernels.json"
  run benchmarks.scan --out "$out/scan.json"
  run benchmarks.scan --batch 64 128 256 --under 0.64 --out "$out/scan-under.json" ;;
vllm-bench)  # 6: vLLM's own benchmarks, off and on
  run benchmarks.vllm_bench --shape qwen3-8b --forced paper --compiled --batch 64 --prompts 256 --rounds 1 \
    ${TOKENIZER:+--tokenizer "$TOKENIZER"} --out "$out/vllm-bench.json" ;;
tiles)       # 2: forms of the head kernel
  run benchmarks.head_tiles --out "$out/tiles.json" ;;
*) echo "no part $part; see the head of $0" >&2; exit 2 ;;
esac
