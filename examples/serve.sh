#!/usr/bin/env bash
# serve.sh MODEL [further arguments of vllm serve]
set -euo pipefail
exec vllm serve "$@" \
  --additional-config '{"enable_multi_layer_entropy_selection": true, "trough_log_interval": 200}'
