"""Every kernel compiles for GPUs that are not there, in the forms that the warm-up of an engine asks for."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from conftest import ROOT
from toy_model import ToyModel, plan_of

from confident_decoding import device_scan
from confident_decoding.scan import warm_up
from kernels.implementations import GPU, needs_triton, operations

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
VOCAB = 3 * 8192 + 5
"""Several splits, as any real one has."""
MODULES = ("counting", "decision", "keeping", "projection", "settling", "states", "statistics")


def type_of(value):
    """Of an argument, in Triton's words."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, (int, float)):
        return "i32" if isinstance(value, int) else "fp32"
    return f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>"


def kernels():
    from confident_decoding.kernels.launching import Kernel

    for module in (importlib.import_module(f"confident_decoding.kernels.{name}") for name in MODULES):
        for name, kernel in vars(module).items():
            if isinstance(kernel, Kernel) and kernel._jit.fn.__module__ == module.__name__:
                yield kernel, module.__name__, name


def launched(keys, metrics, rows_per_read, has_maps):
    """The forms that a warm-up launches."""
    from confident_decoding.kernels import projection
    from confident_decoding.kernels.launching import Kernel

    names, found = {id(kernel): where for kernel, *where in kernels()}, []
    ops, plan = operations("triton"), plan_of(**keys)

    def launch(kernel, grid, *args, num_warps, num_stages=3, **constants):
        """Note the form; what it computes decides nothing about later launches."""
        types = [type_of(arg).replace("fp16", "bf16") for arg in args]
        found.append([*names[id(kernel)], types, num_warps, num_stages, constants])

    def counted(selection, rules, prompt=False):
        ops.count(counters, counters if metrics else None, prompt, selection, rules, plan.window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "__call__", launch)
        patch.setattr(torch, "empty", torch.zeros)  # row numbers that kernels would have written are indices
        patch.setattr(device_scan, "operations", lambda device: ops)
        patch.setattr(projection, "has_tensor_maps", lambda device: has_maps)
        model = ToyModel(
            0, torch.float16, rows_per_read, on_device=True, fused=True, hidden=64, top_ids=metrics, vocab=VOCAB
        )
        statistics = partial(ops.statistics, first_id=0 if metrics else None)
        model.head = dataclasses.replace(model.head, statistics=statistics)
        counters = torch.zeros((2, 14), dtype=torch.int64)
        warm_up(plan, model.head, model.packed(1, plan.depths), counted)
        stats_of_ranks = ops.statistics(torch.zeros((4, 20), dtype=torch.float16), None, 2.0, 0.5, 7)
        ops.merge(stats_of_ranks, torch.zeros(1, dtype=torch.int32))
    return found


@needs_triton
@pytest.mark.skipif(GPU, reason="there the kernels are compiled and run")
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability):
    forms = [
        form
        for keys in ({}, {"select_method": "trough-m1"})
        for metrics in (False, True)
        for rows_per_read in (None, 20)
        for form in launched(keys, metrics, rows_per_read, has_maps=capability >= 90)
    ]
    different = {json.dumps(form): form for form in forms}
    assert {tuple(where) for _, *where in kernels()} == {tuple(form[:2]) for form in forms}
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "kernels.offline", str(capability)],
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0"},
        input=json.dumps(list(different.values())),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = json.loads(done.stdout)
    assert len(sizes) == len(different) > 20
    assert min(sizes) > 1000
