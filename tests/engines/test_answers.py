"""Whose text a token's is, and how many tokens are another's."""

import pytest

from confident_decoding.engines.answers import pieces, places_changed


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ([], [], (0, 0)),
        ([1, 2], [1, 2], (0, 2)),
        ([1, 2, 3], [1, 9, 3], (1, 3)),
        ([1, 2], [], (2, 2)),
        ([1], [1, 5, 6], (2, 3)),
    ],
)
def test_places_changed(a, b, found):
    assert places_changed(a, b) == found
    assert places_changed(b, a) == found


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


@pytest.mark.parametrize("text", ["Hello, world!\n\n  two", "é 日本語 😀👩‍👩‍👧 end", "😀", " leading", ""])
def test_pieces_are_the_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    texts = pieces(ids, tokenizer.decode)
    assert "".join(texts) == tokenizer.decode(ids) == text
    assert len(texts) == len(ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(texts)


def test_a_character_cut_off_is_still_shown(tokenizer):
    ids = tokenizer("a 😀")["input_ids"][:-1]
    assert "".join(pieces(ids, tokenizer.decode)) == tokenizer.decode(ids)


def test_spaces_of_a_decoder_that_drops_the_first():
    """As SentencePiece's do: a token's space shows only behind another token."""
    from tokenizers.decoders import Metaspace

    words = ["▁The", "▁sea", "s", "▁rise", "."]
    decoder = Metaspace()
    assert decoder.decode(words[1:]) == "seas rise."
    found = pieces(range(5), lambda ids: decoder.decode([words[i] for i in ids]))
    assert found == ["The", " sea", "s", " rise", "."]
