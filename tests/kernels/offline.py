"""Compile forms of the kernels for a GPU that is not there: ``python -m kernels.offline CAPABILITY < FORMS``.

Triton compiles for any device of a kind, so that what its interpreter accepts and its compiler does not is found here.
Each form is ``[module, name of the kernel, types of its arguments, warps, stages, constants]``.
"""

import importlib
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def compiled(form, capability):
    """The size of the form's machine code."""
    module, name, types, warps, stages, constants = form
    function = getattr(importlib.import_module(module), name)._jit
    given = function.arg_names[: len(types)]
    signature = dict(zip(given, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    assert list(signature) == function.arg_names
    constexprs = {(function.arg_names.index(key),): value for key, value in constants.items()}
    # As at a launch with whole tensors, whose addresses are multiples of 16.
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(types) if kind.startswith("*")}
    source = ASTSource(fn=function, signature=signature, constexprs=constexprs, attrs=aligned)
    options = {"num_warps": warps, "num_stages": stages}
    return len(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"])


if __name__ == "__main__":
    print(json.dumps([compiled(form, int(sys.argv[1])) for form in json.load(sys.stdin)]))
