"""Token ids as text, and texts as pieces that fit the model's context."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from confident_decoding.engines.answers import pieces

REPLACEMENT = "\ufffd"
PORTION = 1 << 17
_MARKS = {"\n": "↵", "\t": "⇥", " ": "␣"}
_CUTS = (re.compile(r"(?<=\S\n)(?=\S)"), re.compile(r"(?<=\S)(?= \S)"))
"""Behind the end of a line, else before a word: byte-level tokens do not reach over that, and are split alike on both
sides. (A tokenizer that opens each text with a space gives one token of such a part another spelling.)"""


def spell(tokenizer: Any, token: int) -> str:
    """One token as text, alone; its name in the vocabulary where it is no whole text (a part of a character)."""
    text: str = tokenizer.decode([token])
    return str(tokenizer.convert_ids_to_tokens([token])[0]) if REPLACEMENT in text or not text else text


def visible(text: str) -> str:
    """A token with everything in it to be seen: white space, control characters, zero-width ones."""
    return "".join(_MARKS.get(c) or (c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)


def running_text(tokenizer: Any, before: Iterable[int], tokens: Iterable[int]) -> list[str]:
    """The text that each of ``tokens`` adds, so that all together are the text after ``before``.

    A token that ends no character adds "", and the one that ends it the whole character.

    Args:
        tokenizer: Of transformers.
        before: Tokens that the text follows (some tokenizers spell a first token differently).
        tokens: T of them.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        opening = list(before)
        return pieces([*opening, *tokens], tokenizer.decode)[len(opening) :]
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


def cut(tokenizer: Any, text: str, longest: int) -> Iterator[list[int]]:
    """A text as token ids, in pieces of at most ``longest``, each with the special tokens that open a text.

    Args:
        tokenizer: Of transformers.
        text: Any length; one to two `PORTION` of characters are tokenized at a time, up to the end of a line, or of a
            word. (A text of longer words than that is cut in a word, which may change a token there.)
        longest: Tokens of a piece, at least 3.

    Yields:
        Pieces of at least two tokens.

    Raises:
        ValueError: ``longest`` has no room for text.
    """
    opening = list(tokenizer("")["input_ids"])
    size, held = longest - len(opening), []
    if size < 1:
        raise ValueError(f"pieces of {longest} tokens, of which {len(opening)} open a text, hold none of it")
    for portion in _portions(text):
        held += tokenizer(portion, add_special_tokens=False)["input_ids"]
        while len(held) >= size:
            yield opening + held[:size]
            del held[:size]
    if held and len(opening + held) > 1:
        yield opening + held


def _portions(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        least, most = start + PORTION, start + 2 * PORTION
        found = (cut.search(text, least, most) for cut in _CUTS)
        end = next((place.end() for place in found if place), most)
        yield text[start:end]
        start = end
