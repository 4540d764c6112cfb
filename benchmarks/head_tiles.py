"""Which tiles, pipelines and stores are fastest for the head kernel (`confident_decoding.kernels.projection`).

    python -m benchmarks.head_tiles --out tiles.json

Forms that are tried: rows and columns of a tile, hidden elements of a step, warps, stages, programs on each
multiprocessor, and whether a tile is written by threads or by the tensor memory accelerator while the next one begins.
Rows are counted on the device, as in a scan. Each form's result is compared with cuBLAS's before it is timed.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl

from benchmarks.kernels import listed
from benchmarks.timing import graph_ms, machine

TOLERANCE = 0.2
"""Logits have a standard deviation of 3, so that one unit of the last place in bfloat16 is up to 1/8."""
ROWS = (64, 128, 160, 192, 224, 256, 320, 384, 512)


@dataclass(frozen=True)
class Form:
    """See the module."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int
    accelerated: bool = False


FORMS = [
    Form(64, 256, 64, 4, 4, 1, True),
    Form(64, 256, 64, 8, 4, 1, True),
    Form(64, 256, 64, 4, 2, 2),
    Form(64, 256, 32, 4, 4, 2),
    Form(64, 256, 128, 4, 2, 1),
    Form(64, 128, 64, 4, 4, 2),
    Form(64, 128, 64, 4, 3, 2, True),
    Form(64, 128, 128, 4, 2, 2),
    Form(128, 128, 64, 4, 3, 2),
    Form(128, 128, 64, 8, 4, 1, True),
    Form(128, 256, 64, 8, 4, 1),
    Form(128, 256, 64, 8, 3, 1, True),
]


@triton.jit
def project_kernel(
    states,
    weight,
    result,
    count,
    columns,
    hidden,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    ACCELERATED: tl.constexpr,
):
    """The package's, with more to choose; the accelerator writes a tile's rows beyond ``count`` too."""
    end = tl.load(count)
    row_tiles = tl.cdiv(end, ROWS)
    for tile in tl.range(tl.program_id(0), row_tiles * tl.cdiv(columns, COLUMNS), tl.num_programs(0), flatten=True):
        row, column = (tile % row_tiles) * ROWS, (tile // row_tiles) * COLUMNS
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, hidden, DEPTH):
            sums = tl.dot(states.load([row, k]), weight.load([column, k]).T, sums)
        if ACCELERATED:
            result.store([row, column], sums.to(states.dtype))
        else:
            rows, cols = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
            place = result + rows[:, None].to(tl.int64) * columns + cols[None, :]
            tl.store(place, sums.to(states.dtype), mask=(rows < end)[:, None] & (cols < columns)[None, :])


def project(form, states, weight, count, result, processors):
    """Fill the first ``count`` rows of ``result`` ``[capacity, V]``."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    tiled = TensorDescriptor.from_tensor
    project_kernel[(processors * form.programs,)](
        tiled(states, [form.rows, form.depth]),
        tiled(weight, [form.columns, form.depth]),
        tiled(result, [form.rows, form.columns]) if form.accelerated else result,
        count,
        len(weight),
        weight.shape[1],
        ROWS=form.rows,
        COLUMNS=form.columns,
        DEPTH=form.depth,
        ACCELERATED=form.accelerated,
        num_warps=form.warps,
        num_stages=form.stages,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--forms", type=int, nargs="+", default=range(len(FORMS)), help="numbers of the forms")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()
    from confident_decoding.kernels.triton_operations import project as in_use

    torch.manual_seed(0)
    capacity = max(ROWS)
    weight = (torch.randn(args.vocab, args.hidden, device="cuda") * 3 / args.hidden**0.5).bfloat16()
    states = torch.randn(capacity, args.hidden, device="cuda").bfloat16()
    expected = states @ weight.T
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    counted = [listed(rows, 1, 1, capacity, capacity) for rows in ROWS]
    table = [
        {"form": "cuBLAS", "ms": [graph_ms(lambda x=states[:rows]: x @ weight.T) for rows in ROWS]},
        {"form": "the one in use", "ms": [graph_ms(partial(in_use, states, weight, these)) for these in counted]},
    ]
    for line in table:
        print(f"{line['form']:60}", " ".join(f"{ms:.4f}" for ms in line["ms"]), flush=True)
    for form in (FORMS[number] for number in args.forms):
        line = {"form": asdict(form)}
        table.append(line)
        try:
            result, count = torch.empty_like(expected), torch.empty(1, dtype=torch.int32, device="cuda")
            for rows in (5, capacity - 5):
                result.zero_()
                count.fill_(rows)
                project(form, states, weight, count, result, processors)
                apart = float((result[:rows].float() - expected[:rows].float()).abs().max())
                if apart > TOLERANCE:
                    raise ValueError(f"{rows} rows differ from cuBLAS's by up to {apart:.3f}")
            line["ms"] = []
            for rows in ROWS:
                count.fill_(rows)
                fill = partial(project, form, states, weight, count, result, processors)
                line["ms"].append(graph_ms(fill))
        except Exception as error:  # one form that does not fit must not end the others
            line["error"] = str(error)[:200]
        shown = line.get("error") or " ".join(f"{ms:.4f}" for ms in line["ms"])
        print(f"{form!s:60} {shown}", flush=True)
    if args.out:
        args.out.write_text(json.dumps({"machine": machine(), "rows": ROWS, "forms": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
