"""Ranks of tensor, context, expert and data parallelism that share one GPU, for checks where there are not enough.

NCCL refuses two ranks on one device of one host. Here each rank tells it another host's name (`one_gpu_worker`), so
that they talk over the loopback interface: the same collectives, in CUDA graphs as well. Slow, so nothing is timed
with it. What only several GPUs have (NVLink, vLLM's own all-reduce in shared memory) is not run.
"""

SHARED = {
    "worker_cls": "benchmarks.one_gpu_worker.Worker",
    "distributed_executor_backend": "mp",
    "disable_custom_all_reduce": True,
}
"""Options of an engine whose ranks share a GPU."""
ENV = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
"""Its environment."""


def places(ranks):
    """``(options, environment, words for a report)`` of an engine with so many ranks on this machine."""
    import torch

    if torch.cuda.device_count() >= ranks:
        return {}, {}, f"{ranks} GPUs"
    return SHARED, ENV, f"{ranks} ranks on one GPU"
