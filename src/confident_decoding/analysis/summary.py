"""The figures of a trace: two passes over it, in bounded memory. docs/analysis.md defines each."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confident_decoding.analysis.selections import extra_projections, troughs
from confident_decoding.analysis.trace import Block, Trace
from confident_decoding.analysis.typical import typical_tokens
from confident_decoding.analysis.words import KINDS, kind

ENTROPY_BINS = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, math.inf)
"""Edges, nats, of the final layer's entropy; each bin holds its lower edge."""
DROP_BINS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, math.inf)
"""Edges, nats, of how much lower the selected layer's entropy is."""
DECILES = 10
LISTED = 10
"""Replaced tokens that are listed of each kind."""
GROUPS = ("unperturbed", "perturbed", "replaced")
"""Tokens that stay at the final layer, the others, and those of the others whose best token changes."""


def summarise(trace: Trace, spell: Callable[[int], str]) -> dict[str, Any]:
    """All figures as JSON values; shares and means are None where there is no token to divide by.

    Args:
        trace: At least one row.
        spell: A token as text.
    """
    about = trace.about
    counts = _Counts(about.candidates, about.window)
    for block in trace.blocks():
        counts.add(block)
    tokens, moved = counts.tokens, int(counts.depths[1:].sum())
    by_depth = {
        group: [_share(float(x), int(counts.groups[place])) for x in counts.entropy_sums[place]]
        for place, group in enumerate(GROUPS)
    }
    return {
        "model": about.model,
        "layers": about.num_layers,
        "window": about.window,
        "recorded_candidates": about.candidates,
        "trajectory": about.trajectory,
        "dtype": about.dtype,
        "versions": about.versions,
        "sequences": counts.sequences,
        "tokens": tokens,
        "tokens_with_nan": counts.not_finite,
        "not_at_final": _share(moved, tokens),
        "replaced": _share(counts.replaced, tokens),
        "replaced_of_not_at_final": _share(counts.replaced, moved),
        "mean_depth": _share(float(counts.depths @ np.arange(about.window)), tokens),
        "extra_projections": counts.sweep(about.window)["extra_projections"],
        "depths": counts.depths.tolist(),
        "entropy": {
            "final": _share(float(counts.entropy_sums[:2, 0].sum()), tokens),
            "drop": _share(counts.drop_sum, tokens),
            "drop_of_not_at_final": _share(counts.drop_sum, moved),
            "drops": _bins(DROP_BINS, tokens=counts.drops),
        },
        "entropy_by_depth": by_depth,
        "typical": typical_tokens(trace, by_depth, spell),
        "by_final_entropy": _bins(ENTROPY_BINS, **counts.by_entropy),
        "by_position": [
            {"decile": place + 1, **_rates({key: int(values[place]) for key, values in counts.by_decile.items()})}
            for place in range(DECILES)
        ],
        "by_kind": _by_kind(counts, spell),
        "windows": [counts.sweep(k) for k in range(2, about.candidates + 1)],
    }


class _Counts:
    """Sums over rows, at n recorded depths and a window of K candidates."""

    def __init__(self, n: int, window: int) -> None:
        self._n, self._window = n, window
        self.tokens = self.sequences = self.replaced = self.not_finite = 0
        self._last_sequence = -1
        self.depths = np.zeros(window, np.int64)
        self.drop_sum = 0.0
        self.drops = np.zeros(len(DROP_BINS) - 1, np.int64)
        self.groups, self.entropy_sums = np.zeros(len(GROUPS), np.int64), np.zeros((len(GROUPS), n))
        names = ("tokens", "not_at_final", "replaced")
        self.by_entropy = {name: np.zeros(len(ENTROPY_BINS) - 1, np.int64) for name in names}
        self.by_decile = {name: np.zeros(DECILES, np.int64) for name in names}
        self.final_tokens: Counter[int] = Counter()
        self.replacements: Counter[tuple[int, int]] = Counter()
        self._sweep = np.zeros((n + 1, 4))

    def add(self, block: Block) -> None:
        """Count more rows."""
        # What is no number has stopped the scan; in the means it counts as 0.
        entropy = np.nan_to_num(block.entropy.astype(np.float64), posinf=0, neginf=0)
        self.not_finite += int((~np.isfinite(block.entropy)).any(1).sum())
        rows, reached = np.arange(len(entropy)), troughs(block.entropy)
        final = block.best_token[:, 0]
        for k in range(2, self._n + 1):
            depth = np.minimum(reached, k - 1)
            extra = extra_projections(reached, k)
            replaced = block.best_token[rows, depth] != final
            self._sweep[k] += (depth > 0).sum(), replaced.sum(), depth.sum(), extra.sum()
        depth = np.minimum(reached, self._window - 1)
        moved, chosen = depth > 0, block.best_token[rows, depth]
        replaced, drop = chosen != final, entropy[:, 0] - entropy[rows, depth]
        self.tokens += len(rows)
        self.sequences += int((np.diff(block.sequence, prepend=self._last_sequence) != 0).sum())
        self._last_sequence = int(block.sequence[-1])
        self.replaced += int(replaced.sum())
        self.depths += np.bincount(depth, minlength=self._window)
        self.drop_sum += float(drop.sum())
        self.drops += _histogram(drop[moved], DROP_BINS)
        self.groups += (~moved).sum(), moved.sum(), replaced.sum()
        self.entropy_sums += entropy[~moved].sum(0), entropy[moved].sum(0), entropy[replaced].sum(0)
        decile = block.position.astype(np.int64) * DECILES // block.length
        for name, mask in (("tokens", rows >= 0), ("not_at_final", moved), ("replaced", replaced)):
            self.by_entropy[name] += _histogram(entropy[mask, 0], ENTROPY_BINS)
            self.by_decile[name] += np.bincount(decile[mask], minlength=DECILES)
        self.final_tokens.update(final.tolist())
        self.replacements.update(zip(final[replaced].tolist(), chosen[replaced].tolist(), strict=True))

    def sweep(self, k: int) -> dict[str, Any]:
        """The main figures in a window of k candidates."""
        moved, replaced, depth, extra = (_share(float(x), self.tokens) for x in self._sweep[k])
        return {
            "window": k,
            "not_at_final": moved,
            "replaced": replaced,
            "mean_depth": depth,
            "extra_projections": extra,
        }


def _by_kind(counts: _Counts, spell: Callable[[int], str]) -> dict[str, Any]:
    replaced: Counter[int] = Counter()
    for (token, _), times in counts.replacements.items():
        replaced[token] += times
    texts = {token: spell(token) for token in counts.final_tokens}
    kinds = {token: kind(text) for token, text in texts.items()}
    result: dict[str, Any] = {}
    for name in KINDS:
        tokens = {token: times for token, times in counts.final_tokens.items() if kinds[token] == name}
        # Most often first; among equals by id, so that a summary can be compared with another.
        listed = sorted((-replaced[token], token) for token in tokens if replaced[token])[:LISTED]
        count = sum(tokens.values())
        times = sum(replaced[token] for token in tokens)
        result[name] = {
            "tokens": count,
            "replaced": _share(times, count),
            "most_replaced": [
                {
                    "token": token,
                    "text": texts[token],
                    "occurrences": tokens[token],
                    "replaced": -fewer,
                    "mostly_by": _mostly_by(token, counts.replacements, spell),
                }
                for fewer, token in listed
            ],
        }
    return result


def _mostly_by(token: int, replacements: Counter[tuple[int, int]], spell: Callable[[int], str]) -> dict[str, Any]:
    times, other = min((-times, other) for (source, other), times in replacements.items() if source == token)
    return {"token": other, "text": spell(other), "times": -times}


def _histogram(values: NDArray[np.float64], edges: tuple[float, ...]) -> NDArray[np.int64]:
    place = np.searchsorted(np.array(edges[1:-1]), values, side="right")
    return np.bincount(place, minlength=len(edges) - 1)


def _bins(edges: tuple[float, ...], **counts: NDArray[np.int64]) -> list[dict[str, Any]]:
    return [
        {
            "from": edges[place],
            "to": None if math.isinf(edges[place + 1]) else edges[place + 1],
            **_rates({name: int(values[place]) for name, values in counts.items()}),
        }
        for place in range(len(edges) - 1)
    ]


def _rates(counts: dict[str, int]) -> dict[str, Any]:
    """Tokens as a count, all else as a share of them."""
    return {name: n if name == "tokens" else _share(n, counts["tokens"]) for name, n in counts.items()}


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
