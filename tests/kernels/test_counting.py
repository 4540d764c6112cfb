"""The counters: kernel and twin against their definitions."""

import math

import numpy as np
import oracle
import pytest
import torch

from confident_decoding.model_head import Selection
from confident_decoding.selection import RowRules
from kernels.implementations import DEVICE, GPU, IMPLEMENTATIONS, generator, operations


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rows", "n", "mirrored"), [(0, 10, True), (1, 1, True), (130, 10, False), (300, 40, True)])
@pytest.mark.parametrize("own", [(), ("limits",), ("limits", "thresholds")], ids=str)
def test_counting(name, rows, n, own, mirrored):
    """Against the definitions; the matrices are parts of wider ones, as those of replayed scans are."""
    g, window = generator(rows + n), max(0, n - 2)
    depths = torch.randint(0, n, (rows,), generator=g)
    entropies = torch.rand(n, rows + 3, generator=g).sort(0, descending=True)[0]
    entropies[torch.rand(n, rows + 3, generator=g) < 0.1] = math.nan
    ids = torch.randint(0, 3, (n, rows + 3), generator=g, dtype=torch.int32)
    limits = torch.randint(-1, n, (rows,), generator=g, dtype=torch.int32) if "limits" in own else 6
    thresholds = torch.rand(rows, generator=g) if "thresholds" in own else 0.4
    counters = torch.full((2, n + 2), 5, dtype=torch.int64, device=DEVICE)
    mirror = torch.zeros((2, n + 2), dtype=torch.int64, pin_memory=GPU) if mirrored else None
    rules = RowRules(n, *(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in (limits, 0, thresholds)))
    parts = entropies.to(DEVICE)[:, :rows], ids.to(DEVICE)[:, :rows]
    expected = np.full((2, n + 2), 5)
    for prompt in (False, True):
        for matrices, fixed in ((parts, False), ((parts[0], None), False), ((None, None), False), ((None, None), True)):
            chosen = Selection(torch.empty(0), depths.to(DEVICE), None, *matrices)
            operations(name).count(counters, mirror, prompt, chosen, rules, None if fixed else window)
            own_rows = expected[int(prompt)]
            own_rows[:n] += np.bincount(depths, minlength=n)
            for row in range(rows):
                if matrices[1] is not None:
                    own_rows[n] += bool(ids[0, row] != ids[depths[row], row])
                h, limit = entropies[:, row].tolist(), int(limits[row]) if "limits" in own else 6
                threshold = float(thresholds[row]) if "thresholds" in own else 0.4
                own_rows[n + 1] += bool(fixed and depths[row] == 0 and limit >= 0)
                if matrices[0] is not None and min(limit, window) > 0 and not 0 < threshold >= h[0]:
                    own_rows[n + 1] += oracle.ends_at_nan(h, min(limit, window))
    if GPU:
        torch.cuda.synchronize()
    np.testing.assert_array_equal(counters.cpu().numpy(), expected)
    if mirror is not None and rows:
        np.testing.assert_array_equal(mirror.numpy(), expected)
    if rows == 300:
        assert expected[0, n + 1] > 20, "the case is too easy to mean anything"
