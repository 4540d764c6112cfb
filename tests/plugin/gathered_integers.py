"""A worker extension that lets the CPU engine gather whole numbers.

Batch-sharded sampling gathers the ranks' tokens. vLLM 0.32's gather in shared memory, for ranks of one machine, is
not made for them (`"shm_all_gather_impl" not implemented for 'Long'`), with the plugin or without. Here torch's takes
its place.
"""

import torch
from vllm.distributed.device_communicators import cpu_communicator

_stock = cpu_communicator._CPUSHMDistributed.all_gather_into_tensor


def all_gather_into_tensor(self, output, input, group=None):
    if input.is_floating_point():
        return _stock(self, output, input, group)
    return torch.distributed.all_gather_into_tensor(output, input, group=group)


cpu_communicator._CPUSHMDistributed.all_gather_into_tensor = all_gather_into_tensor


class GatheredIntegers:
    """For ``worker_extension_cls``."""
