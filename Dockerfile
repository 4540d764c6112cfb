# vLLM's official image with the plugin in it:
#   docker build -t vllm-confident .
#   docker run --gpus all -p 8000:8000 vllm-confident MODEL --additional-config '{"enable_multi_layer_entropy_selection": true}'
ARG VLLM_VERSION=0.32.0
FROM vllm/vllm-openai:v${VLLM_VERSION}
COPY pyproject.toml README.md LICENSE /tmp/confident-decoding/
COPY src /tmp/confident-decoding/src
# --no-deps: torch, pydantic and the rest are the image's own and must stay as they are.
RUN python3 -m pip install --no-cache-dir hatchling \
 && python3 -m pip install --no-cache-dir --no-deps --no-build-isolation /tmp/confident-decoding \
 && rm -r /tmp/confident-decoding \
 && python3 -c "import confident_decoding.plugin.entrypoint"
