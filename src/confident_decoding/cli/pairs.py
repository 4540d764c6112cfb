"""Two answers to one prompt, and what is to be said of them."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confident_decoding.cli.difference import Difference, compare_tokens, marked
from confident_decoding.cli.inputs import Prompt
from confident_decoding.engines.answers import pieces


@dataclass(frozen=True)
class Answer:
    """What one request returned.

    Attributes:
        text: Of the answer.
        token_ids: Its tokens, the one that ended it included.
        finish_reason: ``"stop"`` or ``"length"``.
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None

    @classmethod
    def of(cls, output: Any) -> "Answer":
        """From vLLM's ``RequestOutput``."""
        completion = output.outputs[0]
        return cls(completion.text, list(completion.token_ids), completion.finish_reason)


Spans = list[tuple[str, bool]]
"""``(text, changed)``."""


@dataclass(frozen=True)
class Pair:
    """One prompt's two answers.

    Attributes:
        prompt: As it was read.
        standard: Answer of standard decoding.
        confident: Answer of Confident Decoding.
        difference: Of the tokens.
        spans: Of the two answers.
        first_tokens: Text of the first tokens that differ, None where an answer had ended or they are equal.
    """

    prompt: Prompt
    standard: Answer
    confident: Answer
    difference: Difference
    spans: tuple[Spans, Spans]
    first_tokens: tuple[str | None, str | None]

    @classmethod
    def of(cls, prompt: Prompt, standard: Answer, confident: Answer, decode: Callable[..., str]) -> "Pair":
        """Compare two answers; ``decode`` is the tokenizer's."""
        readable = functools.partial(decode, skip_special_tokens=True)
        difference = compare_tokens(standard.token_ids, confident.token_ids)
        both = (standard.token_ids, confident.token_ids)
        runs = [[(run[side], run[2]) for run in difference.kept] for side in (0, 1)]
        spans = [marked(pieces(ids, readable), kept) for ids, kept in zip(both, runs, strict=True)]
        at = difference.first
        first = [decode([ids[at]]) if at is not None and at < len(ids) else None for ids in both]
        return cls(prompt, standard, confident, difference, (spans[0], spans[1]), (first[0], first[1]))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **{key: value for key, value in asdict(self.prompt).items() if value is not None},
            "standard": asdict(self.standard),
            "confident": asdict(self.confident),
            "first_difference": self.difference.first,
            "first_tokens": self.first_tokens,
            "changed_by_position": self.difference.by_position,
            "changed_aligned": self.difference.aligned,
        }


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Numbers over all prompts; shares are of all tokens, so long answers weigh more."""
    longer = [max(len(p.standard.token_ids), len(p.confident.token_ids)) for p in pairs]
    both = [len(p.standard.token_ids) + len(p.confident.token_ids) for p in pairs]
    return {
        "prompts": len(pairs),
        "prompts_changed": sum(p.difference.first is not None for p in pairs),
        "tokens_standard": sum(len(p.standard.token_ids) for p in pairs),
        "tokens_confident": sum(len(p.confident.token_ids) for p in pairs),
        "changed_by_position": _weighted([p.difference.by_position for p in pairs], longer),
        "changed_aligned": _weighted([p.difference.aligned for p in pairs], both),
    }


def _weighted(shares: Sequence[float], weights: Sequence[int]) -> float:
    return sum(s * w for s, w in zip(shares, weights, strict=True)) / max(1, sum(weights))
