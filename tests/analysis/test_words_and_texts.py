"""Kinds of tokens, tokens as text, texts in pieces; with the embedded model's tokenizer."""

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence
from tokenizers.models import BPE

from confident_decoding.analysis import texts
from confident_decoding.analysis.texts import cut, running_text, spell, visible
from confident_decoding.analysis.words import FUNCTION_WORDS, kind

TEXTS = [
    "The cat sat.\nIt is 7 o'clock - nearly.",
    "Überraschung: 你好, 🙂🙃 naïve café\u00a0end",
    "<script>alert('x')</script> & <b>bold</b>",
    "",
]


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" the", "function"),
        ("The", "function"),
        ("\nWhich", "function"),
        (" gravity", "content"),
        ("ing", "content"),
        (" 42", "content"),
        ("你好", "content"),
        (".", "punctuation"),
        ("\n\n", "punctuation"),
        (" ", "punctuation"),
        ("<|im_end|>", "punctuation"),
        ("🙂", "punctuation"),
        ("'", "punctuation"),
    ],
)
def test_kinds(text, expected):
    assert kind(text) == expected


def test_function_words_are_written_as_they_are_compared():
    assert all(word == word.lower().strip() and word.isalpha() for word in FUNCTION_WORDS)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text(text, tokenizer):
    ids = tokenizer(text)["input_ids"]
    found = running_text(tokenizer, [1, 2], ids)
    assert len(found) == len(ids)
    assert "".join(found) == text


def test_a_character_of_several_tokens_comes_with_its_last(tokenizer):
    ids = tokenizer("🙃")["input_ids"]
    assert len(ids) > 1, "the case is too easy to mean anything"
    assert running_text(tokenizer, [], ids) == [""] * (len(ids) - 1) + ["🙃"]


def test_tokens_that_are_no_text_do_not_stop_it(tokenizer):
    half = tokenizer("🙃")["input_ids"][0]
    rest = tokenizer(" and so on")["input_ids"]
    assert "".join(running_text(tokenizer, [], [half] * 3 + rest)).endswith("and so on")


def test_a_tokenizer_without_a_stream(tokenizer):
    """vLLM's own for Mistral, say: whole texts are decoded."""

    class Plain:
        decode = tokenizer.decode

    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert running_text(Plain(), [1, 2], ids) == running_text(tokenizer, [1, 2], ids)


def test_bytes_that_are_no_text_do_not_stop_it():
    """As SentencePiece models spell them; the stream of tokenizers gives up there."""

    class Bytes:
        vocabulary = {f"<0x{i:02X}>": i for i in range(256)} | {"▁cat": 256, "▁the": 257}
        backend_tokenizer = Tokenizer(BPE(vocabulary, [], byte_fallback=True, unk_token="<0x00>"))

    Bytes.backend_tokenizer.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
    found = running_text(Bytes(), [257], [256, 51, 161, 257, 256])
    assert len(found) == 5
    assert "".join(found).endswith(" the cat")


def test_every_token_can_be_spelt(tokenizer):
    half = tokenizer("🙃")["input_ids"][0]
    assert spell(tokenizer, tokenizer(" gravity")["input_ids"][0]) == " gravity"
    assert "\ufffd" not in spell(tokenizer, half)
    assert all(spell(tokenizer, token) for token in range(0, len(tokenizer), 97))


@pytest.mark.parametrize("longest", [8, 13, 1000])
def test_cut(longest, tokenizer):
    text = "one two three four five six seven eight nine ten eleven twelve thirteen " * 3
    ids = tokenizer(text)["input_ids"]
    found = list(cut(tokenizer, text, longest))
    assert all(2 <= len(piece) <= longest for piece in found)
    joined = [token for piece in found for token in piece]
    assert joined == ids[: len(joined)]
    assert len(ids) - len(joined) <= 1, "more than a last single token is left out"


LINES = "".join(f"line {i} of it,\n\n  indented,\n\nand so on\n" for i in range(50))
PARAGRAPHS = "".join(f"a paragraph {i} without ends of lines, and more of it\n\n" for i in range(50))
ONE_LINE = "so it goes on " * 200


@pytest.mark.parametrize(
    "text", [LINES, PARAGRAPHS, ONE_LINE, "あ" * 1000], ids=["lines", "paragraphs", "line", "word"]
)
def test_a_long_text_is_tokenized_by_parts(text, tokenizer, monkeypatch):
    ids, longest = tokenizer(text)["input_ids"], 0

    def watched(part, **options):
        nonlocal longest
        longest = max(longest, len(part))
        return tokenizer(part, **options)

    monkeypatch.setattr(texts, "PORTION", 200)
    found = list(cut(watched, text, 30))
    joined = [token for piece in found for token in piece]
    assert tokenizer.decode(joined) == tokenizer.decode(ids[: len(joined)]), "only a last single token is left out"
    assert joined == ids[: len(joined)] or text[0] == "あ", "a word is cut where it is longer than a part"
    assert [len(piece) for piece in found[:-1]] == [30] * (len(found) - 1)
    assert 200 <= longest <= 400


def test_pieces_open_as_a_text_does(tokenizer):
    class Opening:
        """A tokenizer that opens texts with token 0, as many do."""

        def __call__(self, text, add_special_tokens=True, **options):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            return {"input_ids": [0, *ids] if add_special_tokens else ids}

    found = list(cut(Opening(), "one two three four five six seven eight nine ten", 5))
    assert len(found) > 1
    assert all(piece[0] == 0 and len(piece) <= 5 for piece in found)


def test_white_space_and_invisible_characters_are_seen():
    assert visible(" a\n\t") == "␣a↵⇥"
    assert visible("\u200b\u00a0\x00é你") == "\\u200b\\u00a0\\u0000é你"


def test_no_room_for_text(tokenizer):
    with pytest.raises(ValueError, match="hold none of it"):
        list(cut(lambda text, **options: {"input_ids": [0, 1, 2]}, "one two", 3))


def test_a_tokenizer_of_vllms_own(tokenizer):
    """Mistral's has no further options."""

    def plain(text, text_pair=None, add_special_tokens=True, truncation=False, max_length=None):
        return tokenizer(text, add_special_tokens=add_special_tokens)

    assert list(cut(plain, "one two three", 8)) == list(cut(tokenizer, "one two three", 8))
