"""Two ways of decoding on the same questions: what the difference is worth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, bootstrap

RESAMPLES = 9999
CONFIDENCE = 0.95
_AT_ONCE = 10_000_000  # numbers that the bootstrap holds in memory


@dataclass(frozen=True)
class Comparison:
    """Scores of two ways of decoding on the same questions.

    Attributes:
        standard: Mean score of the first.
        score: Mean score of the second.
        difference: ``score - standard``.
        interval: 95% percentile interval of the difference, questions resampled in pairs; None with one question.
        gained: Questions that only the second gets right, where all scores are 0 or 1, else None.
        lost: Questions that only the first gets right, or None.
        p: McNemar's exact two-sided p value of those two counts, or None.
    """

    standard: float
    score: float
    difference: float
    interval: tuple[float, float] | None
    gained: int | None
    lost: int | None
    p: float | None


def compare(standard: Sequence[float], scores: Sequence[float], seed: int) -> Comparison:
    """Compare scores ``[n]`` of the same n questions.

    Raises:
        ValueError: No questions, or not equally many.

    Example:
        >>> compare([0, 1, 0, 0], [1, 1, 1, 0], seed=0).difference
        0.5
    """
    if len(standard) != len(scores) or not len(standard):
        raise ValueError(f"{len(standard)} and {len(scores)} scores are no pairs")
    a, b = np.asarray(standard, float), np.asarray(scores, float)
    differences = b - a
    gained = lost = p = None
    if bool(np.isin([a, b], (0, 1)).all()):
        gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
        p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Comparison(
        float(a.mean()), float(b.mean()), float(differences.mean()), _interval(differences, seed), gained, lost, p
    )


def _interval(differences: np.ndarray, seed: int) -> tuple[float, float] | None:
    if len(differences) < 2:
        return None
    found = bootstrap(
        (differences,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, _AT_ONCE // len(differences)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)
