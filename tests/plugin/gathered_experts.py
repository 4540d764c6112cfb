"""A worker extension that lets the CPU engine run sequence-parallel experts.

For them vLLM gathers and scatters tokens over ranks that hold unequal numbers of them, which vLLM 0.32's communicator
for CPUs does not have. Here it does both with the equal collectives that it has: padded, and summed whole.
"""

import mapped_experts
import torch
from torch import distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def all_gatherv(self, input_, dim=0, sizes=None):
    """The ranks' tensors, one after another along the first dimension."""
    if isinstance(input_, list):
        return [all_gatherv(self, each, dim, sizes) for each in input_]
    assert dim == 0
    sizes = sizes or [len(input_)] * self.world_size
    padded = input_.new_zeros(max(sizes), *input_.shape[1:])
    padded[: len(input_)] = input_
    found = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(found, padded, group=self.device_group)
    return torch.cat([each[:size] for each, size in zip(found, sizes, strict=True)])


def reduce_scatterv(self, input_, dim=-1, sizes=None):
    """This rank's rows of the sum over the ranks."""
    assert dim == 0
    sizes = sizes or [len(input_) // self.world_size] * self.world_size
    total = input_.clone()
    distributed.all_reduce(total, group=self.device_group)
    return total.split(sizes)[self.rank_in_group].contiguous()


CpuCommunicator.all_gatherv = all_gatherv
CpuCommunicator.reduce_scatterv = reduce_scatterv


class GatheredExperts(mapped_experts.MappedExperts):
    """For ``worker_extension_cls``."""


def sequence_parallel(worker):
    """Whether vLLM has chosen sequence-parallel experts, and how many of the model's experts are here (`ranks`)."""
    layers = [m for m in worker.model_runner.get_model().modules() if getattr(m, "is_sequence_parallel", False)]
    return bool(worker.vllm_config.parallel_config.use_sequence_parallel_moe), len(layers)
