"""One token of each group: what the method meets at a single place, before anything is averaged."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confident_decoding.analysis.selections import troughs
from confident_decoding.analysis.trace import Block, Trace


def typical_tokens(
    trace: Trace, means: Mapping[str, Sequence[float | None]], spell: Callable[[int], str]
) -> dict[str, dict[str, Any] | None]:
    """Of each group the token whose entropies, in the window, are nearest to the group's means.

    Nearest by the sum of squared differences; among equals the first. A perturbed token that is replaced stands for
    the latter group alone. None where a group has no token whose entropies are all finite.

    Args:
        trace: Is read once.
        means: Mean entropies ``[n]`` of ``unperturbed``, ``perturbed`` and ``replaced`` tokens, nats.
        spell: A token as text.
    """
    window = trace.about.window
    nearest: dict[str, tuple[float, dict[str, Any]] | None] = dict.fromkeys(means)
    for block in trace.blocks():
        depths = np.minimum(troughs(block.entropy), window - 1)
        selected = block.best_token[np.arange(len(depths)), depths]
        changed = selected != block.best_token[:, 0]
        members = {"unperturbed": depths == 0, "perturbed": (depths > 0) & ~changed, "replaced": changed}
        for group, so_far in nearest.items():
            row, distance = _nearest(block, members[group], means[group][:window])
            if so_far is None or distance < so_far[0]:
                nearest[group] = distance, _described(block, row, int(depths[row]), int(selected[row]), spell)
    return {group: found[1] if found and np.isfinite(found[0]) else None for group, found in nearest.items()}


def _nearest(block: Block, members: NDArray[np.bool_], means: Sequence[float | None]) -> tuple[int, float]:
    """The row, and how far it is; infinitely far where there is none."""
    if None in means:
        return 0, np.inf
    entropy = block.entropy[:, : len(means)].astype(np.float64)
    usable = members & np.isfinite(block.entropy).all(1)
    distances = np.where(usable, ((entropy - np.array(means, np.float64)) ** 2).sum(1), np.inf)
    row = int(distances.argmin())
    return row, float(distances[row])


def _described(block: Block, row: int, depth: int, selected: int, spell: Callable[[int], str]) -> dict[str, Any]:
    final = int(block.best_token[row, 0])
    return {
        "sequence": int(block.sequence[row]),
        "position": int(block.position[row]),
        "depth": depth,
        "final": {"token": final, "text": spell(final)},
        "selected": {"token": selected, "text": spell(selected)},
        "entropy": block.entropy[row].astype(np.float64).tolist(),
    }
