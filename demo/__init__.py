"""The demonstration: the embedded model behind a real `vllm serve`."""
