"""Dense or lazy: how many candidates one reading of the head's weight pays for.

A head call of m rows costs about ``max(read, m * flops) + m * entropy``: reading the weight once, or
multiplying, whichever is longer, and reducing each row's logits to an entropy. Up to the number of
rows where both are equal, a further row is nearly free; beyond it, a row that the scan does not need
is a loss. The lazy scan (`rounds`) therefore looks that many candidates ahead.

On a CPU the host may read how many rows still descend, so the scan is always lazy there. On a GPU
reading that number would stall the device, and the scan is dense.
"""

import torch

CPU_ROWS_PER_READ = 32
"""``python -m benchmarks.head_rows`` on two AVX-512 cores, H=576, V=49,152, bf16: head and entropy take 4.8 ms
for 1 row, 4.9 for 8, 6.3 for 16, 8.4 for 32, 15 for 80; so about 30 further rows cost what a reading does."""


def rows_per_read(device: torch.device) -> int | None:
    """Candidates of a round of the lazy scan on ``device``; None where the scan is dense."""
    return CPU_ROWS_PER_READ if device.type == "cpu" else None
