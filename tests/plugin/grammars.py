"""What a grammar leaves of a distribution: xgrammar itself, asked outside vLLM.

Which layer is selected is decided before the grammar's mask, by the whole distribution.
"""

import json
from functools import cache

import numpy as np
from models.row import VOCAB


@cache
def _compiler(path):
    import xgrammar
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=VOCAB))


def _compiled(path, kind, grammar):
    compiler = _compiler(path)
    if kind == "json":
        return compiler.compile_json_schema(json.dumps(grammar), any_whitespace=False, separators=(",", ":"))
    if kind == "regex":
        return compiler.compile_regex(grammar)
    if kind == "choice":
        return compiler.compile_grammar("root ::= " + " | ".join(json.dumps(choice) for choice in grammar))
    return compiler.compile_grammar(grammar)


def mask(path, kind, grammar):
    """``process(logits [V], generated so far)`` for `checks.follow`: -inf where the grammar does not go on."""
    import xgrammar

    compiled = _compiled(path, kind, grammar)

    def process(logits, generated):
        matcher = xgrammar.GrammarMatcher(compiled)
        assert all(matcher.accept_token(token) for token in generated)
        words = xgrammar.allocate_token_bitmask(1, VOCAB)
        matcher.fill_next_token_bitmask(words, 0)
        bits = np.unpackbits(words.numpy().view(np.uint8), bitorder="little")[:VOCAB]
        return np.where(bits == 1, logits, -np.inf)

    return process
