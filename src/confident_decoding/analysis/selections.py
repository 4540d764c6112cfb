"""Selections of all windows from one set of entropies (numpy)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def troughs(entropies: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Troughs ``[T]`` of entropies ``[T, n]``, in the largest window, n - 1.

    With K candidate layers the scan stops at depth K - 1 at the latest, so the depth that it selects is
    ``min(trough, K - 1)``.

    Example:
        >>> troughs(np.array([[3.0, 2.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]))
        array([2, 0])
    """
    falls = entropies[:, 1:] < entropies[:, :-1]
    depths: NDArray[np.int64] = np.cumprod(falls, axis=1, dtype=np.int64).sum(axis=1)
    return depths


def extra_projections(troughs: NDArray[np.int64], candidates: int) -> NDArray[np.int64]:
    """Candidates beyond the final layer that a lazy scan of K ``candidates`` looks at, ``[T]``.

    It has to see the first depth whose entropy does not fall, unless the window ends before.
    """
    return np.minimum(troughs + 1, candidates - 1)
