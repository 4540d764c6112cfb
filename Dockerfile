# vLLM's official image with the plugin in it:
#   docker build -t vllm-confident .
#   docker run --gpus all -p 8000:8000 vllm-confident MODEL --additional-config '{"enable_multi_layer_entropy_selection": true}'
ARG VLLM_VERSION=0.32.0
FROM vllm/vllm-openai:v${VLLM_VERSION}
COPY pyproject.toml README.md LICENSE /tmp/confident-decoding/
COPY src /tmp/confident-decoding/src
# --no-deps: torch, pydantic and the rest are the image's own and must stay as they are. The variable is for images whose
# Python is the distribution's, where pip asks for it.
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-deps /tmp/confident-decoding \
 && rm -r /tmp/confident-decoding \
 && python3 -c "from importlib.metadata import entry_points; entry_points(group='vllm.general_plugins')['confident_decoding'].load()"
# As in the official image, said again because the command above relies on it.
ENTRYPOINT ["vllm", "serve"]
