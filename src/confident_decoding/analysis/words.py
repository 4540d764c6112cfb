"""Kinds of tokens: content, function, punctuation. A rule of thumb for English, so that figures can be grouped."""

from typing import Literal

Kind = Literal["content", "function", "punctuation"]
KINDS: tuple[Kind, ...] = ("content", "function", "punctuation")

_CLASSES = {
    "articles, determiners, quantifiers": "a an the this that these those each every either neither some any no all "
    "both few many much more most other another such several enough own same",
    "pronouns": "i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its "
    "itself we us our ours ourselves they them their theirs themselves who whom whose which what whoever whatever one "
    "oneself someone somebody something anyone anybody anything everyone everybody everything nobody nothing none",
    "prepositions": "about above across after against along amid among around as at before behind below beneath beside "
    "besides between beyond by despite down during except for from in inside into like near of off on onto out outside "
    "over past per since than through throughout till to toward towards under underneath until up upon via with within "
    "without",
    "conjunctions and connectives": "and but or nor so yet if then because although though while whereas unless "
    "whether once when whenever where wherever however therefore thus hence also",
    "auxiliaries": "am is are was were be been being have has had having do does did doing will would shall should can "
    "could may might must ought not cannot",
    "pieces that tokenizers cut contractions into": "s t re ve ll d m don doesn didn isn aren wasn weren won wouldn "
    "shouldn couldn hasn haven hadn",
    "adverbs that carry no topic": "here there how why very too just only even still already again ever never",
}
FUNCTION_WORDS = frozenset(word for words in _CLASSES.values() for word in words.split())


def kind(text: str) -> Kind:
    """The kind of a token by its text.

    Punctuation: no letter and no digit in it (so white space and control tokens like ``<|im_end|>`` count too).
    Function: one of `FUNCTION_WORDS`, whatever its case. Content: the rest, pieces of words included.

    Example:
        >>> kind(" The"), kind(" gravity"), kind("."), kind("<|im_end|>")
        ('function', 'content', 'punctuation', 'punctuation')
    """
    word = text.strip()
    if not any(map(str.isalnum, word)) or (word.startswith("<") and word.endswith(">") and len(word) > 2):
        return "punctuation"
    return "function" if word.lower() in FUNCTION_WORDS else "content"
