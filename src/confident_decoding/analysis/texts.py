"""Token ids as text, and texts as pieces that fit the model's context."""

from collections.abc import Iterable
from typing import Any

REPLACEMENT = "\ufffd"


def spell(tokenizer: Any, token: int) -> str:
    """One token as text, alone; its name in the vocabulary where it is no whole text (a part of a character)."""
    text: str = tokenizer.decode([token])
    return str(tokenizer.convert_ids_to_tokens([token])[0]) if REPLACEMENT in text or not text else text


def pieces(tokenizer: Any, before: Iterable[int], tokens: Iterable[int]) -> list[str]:
    """The text that each of ``tokens`` adds, so that all together are the text after ``before``.

    A token that ends no character adds "", and the one that ends it the whole character.

    Args:
        tokenizer: Of transformers.
        before: Tokens that the text follows (some tokenizers spell a first token differently).
        tokens: T of them.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return [tokenizer.decode([token]) for token in tokens]
    from tokenizers.decoders import DecodeStream

    stream, found = DecodeStream(ids=list(before), skip_special_tokens=False), []
    for token in tokens:
        try:
            found.append(stream.step(fast, int(token)) or "")
        except Exception as error:
            # What a model generates need not be text. The stream does not recover; a new one does.
            if not str(error).startswith("Invalid prefix"):
                raise
            stream = DecodeStream(skip_special_tokens=False)
            found.append(stream.step(fast, int(token)) or "")
    return found


def cut(tokenizer: Any, text: str, longest: int) -> list[list[int]]:
    """A text as token ids, in pieces of at most ``longest``, each with the special tokens that open a text.

    Args:
        tokenizer: Of transformers.
        text: Any length.
        longest: Tokens of a piece, at least 3.

    Returns:
        Pieces of at least two tokens; none if there is not that much text.
    """
    opening = list(tokenizer("", verbose=False)["input_ids"])
    ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    size = longest - len(opening)
    found = [opening + ids[start : start + size] for start in range(0, len(ids), size)]
    return [piece for piece in found if len(piece) > 1]
