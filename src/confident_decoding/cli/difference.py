"""How much two answers differ, token by token."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from confident_decoding.engines.answers import places_changed


@dataclass(frozen=True)
class Difference:
    """Two sequences of token ids, compared.

    Attributes:
        first: Position (from 0) of the first token that differs or that one of them lacks; None if they are equal.
        by_position: Share (0 to 1) of the positions of the longer one where the two do not have the same token.
        aligned: Share of the tokens of both that are in no common run when the two are aligned
            (`difflib.SequenceMatcher`): an insertion counts alone, not for what follows it.
        kept: ``(start, start in the other, length)`` of each common run.
    """

    first: int | None
    by_position: float
    aligned: float
    kept: tuple[tuple[int, int, int], ...]


def compare_tokens(one: Sequence[int], other: Sequence[int]) -> Difference:
    """Compare two answers.

    Example:
        >>> found = compare_tokens([1, 2, 3, 4], [1, 9, 2, 3, 4])
        >>> found.first, found.by_position, round(found.aligned, 3)
        (1, 0.8, 0.111)
    """
    changed, places = places_changed(one, other)
    pairs = itertools.zip_longest(one, other)
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    kept = tuple((run.a, run.b, run.size) for run in matcher.get_matching_blocks() if run.size)
    total = len(one) + len(other)
    return Difference(
        first,
        by_position=changed / places if places else 0.0,
        aligned=(total - 2 * sum(size for _, _, size in kept)) / total if total else 0.0,
        kept=kept,
    )


def marked(texts: Sequence[str], kept: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    """``(text, changed)`` in order, neighbours of one kind joined.

    Args:
        texts: Of each token (`engines.answers.pieces`).
        kept: ``(start, length)`` of the runs that did not change.
    """
    unchanged = {position for start, length in kept for position in range(start, start + length)}
    spans: list[tuple[str, bool]] = []
    for position, text in enumerate(texts):
        changed = position not in unchanged
        if spans and spans[-1][1] == changed:
            spans[-1] = (spans[-1][0] + text, changed)
        else:
            spans.append((text, changed))
    return [span for span in spans if span[0]]
