"""Engines for `prove`: started, worked with and gone again, in this process or in one of their own."""

import gc

ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # collective_rpc of a function
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}
ENGINE = {  # unless a row or a caller says otherwise
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
}


def on_cpu():
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def isolated(pickled):
    """`with_engine`, in a process that ends with it."""
    import cloudpickle

    return with_engine(*cloudpickle.loads(pickled))


def with_engine(work, folder, made, dtype, additional_config, options):
    """``work(llm)``; no reference to the engine outlives it, so the next one finds a clean process."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    arguments = dict(
        model=str(folder),
        dtype=dtype,
        enable_prefix_caching=False,
        max_logprobs=-1,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 30,  # no profiling of free memory: several of these share a GPU
        additional_config=additional_config,
        **{**ENGINE, **made.options, **(made.cpu_options if on_cpu() else {}), **options},
    )
    llm = None
    try:
        llm = LLM(**arguments)
        return work(llm)
    finally:
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
