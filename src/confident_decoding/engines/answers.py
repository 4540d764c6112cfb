"""Tokens of answers: the text of each, and how many are another's."""

from collections.abc import Callable, Sequence


def places_changed(standard: Sequence[int], tokens: Sequence[int]) -> tuple[int, int]:
    """Places at which two answers do not have the same token, and places in all.

    Places beyond the end of the shorter answer count as changed.

    Example:
        >>> places_changed([5, 6, 7], [5, 9])
        (2, 3)
    """
    length = max(len(standard), len(tokens))
    return length - sum(x == y for x, y in zip(standard, tokens, strict=False)), length


def pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds; of a character in several tokens, the last one has it.

    Args:
        ids: Tokens of an answer.
        decode: Of the tokenizer, token ids to text.
    """
    texts: list[str] = []
    before, begun = 0, 0  # decoded from `before`, so that a token's text can depend on the one in front of it
    for number in range(len(ids)):
        known, text = decode(ids[before:begun]), decode(ids[before : number + 1])
        last = number == len(ids) - 1
        if text.endswith("\N{REPLACEMENT CHARACTER}") and not last:
            texts.append("")
            continue
        texts.append(text[len(known) :])
        before, begun = begun, number + 1
    return texts
