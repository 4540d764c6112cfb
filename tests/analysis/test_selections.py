"""All windows' selections out of one set of entropies, against the definition."""

import math

import numpy as np
import oracle
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.analysis.selections import extra_projections, troughs

ENTROPIES = st.integers(2, 8).flatmap(
    lambda n: st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.nan]), min_size=n, max_size=n), min_size=1)
)


def looked_at(entropies, window):
    """Depths beyond 0 that a scan compares, by walking it."""
    d = 0
    while d < window and entropies[d + 1] < entropies[d]:
        d += 1
    return d if d == window else d + 1


@given(ENTROPIES)
def test_every_window(rows):
    entropies = np.array(rows, np.float32)
    found = troughs(entropies)
    for k in range(2, entropies.shape[1] + 1):
        assert np.minimum(found, k - 1).tolist() == [oracle.trough(row, k - 1) for row in rows]
        assert extra_projections(found, k).tolist() == [looked_at(row, k - 1) for row in rows]
