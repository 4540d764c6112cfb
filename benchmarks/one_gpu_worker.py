"""vLLM's GPU worker as rank r on the first device; vLLM imports it by name (`benchmarks.one_gpu`)."""

import os

from vllm.v1.worker import gpu_worker


class Worker(gpu_worker.Worker):
    """Each rank is on a host of its own, as NCCL sees it."""

    local_rank = property(lambda self: 0, lambda self, value: None)

    def init_device(self):
        """As vLLM's, on a host that NCCL takes for another one."""
        os.environ["NCCL_HOSTID"] = f"{self.parallel_config.data_parallel_rank}-{self.rank}"
        super().init_device()
