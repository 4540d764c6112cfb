"""Structured output: what a grammar leaves of the selected layer's distribution, token for token.

The model is random, so that nothing but the grammar makes its output well formed, and nothing but the selection decides
among what the grammar allows.
"""

import json
import re

import jsonschema
import pytest
import torch
from conftest import greedy, on, tiny_engine
from oracle import TransformersOracle

from plugin.checks import first_difference, follow
from plugin.grammars import mask

pytestmark = pytest.mark.engine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z ]{3,12}$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "kinds": {
            "type": "array",
            "items": {"enum": ["rock", "paper", "scissors"]},
            "minItems": 1,
            "maxItems": 3,
        },
        "open": {"type": "boolean"},
    },
    "required": ["name", "count", "kinds", "open"],
    "additionalProperties": False,
}
PATTERN = r"[a-z]{4,9}@[a-z0-9]{3,6}\.(com|org|net)"
GRAMMARS = {
    "json": SCHEMA,
    "regex": PATTERN,
    "choice": ["the red one", "the round one", "their turn", "neither of them"],
    "grammar": 'root ::= digit op digit op digit\nop ::= "+" | "-" | "*"\ndigit ::= [0-9] [0-9]?',
}
PROMPTS = [torch.randint(7, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (8, 13, 19)]
FREE = greedy(24)


def constrained(kind, **options):
    return {"temperature": 0, "max_tokens": 96, "structured_outputs": {kind: GRAMMARS[kind]}, **options}


@pytest.fixture(scope="module")
def oracle(tiny_text):
    return TransformersOracle(tiny_text, torch.float32)


@pytest.fixture(scope="module")
def results(run_engines, tiny_text):
    """One batch of every grammar and every prompt, with either kind of decoding, and of requests without a grammar."""
    asked = [(kind, prompt, p) for kind in GRAMMARS for prompt in PROMPTS for p in (0, 1)]
    sampling = [constrained(kind, extra_args={"confident_p": p}) for kind, _, p in asked]
    calls = [
        {"prompts": [*(prompt for _, prompt, _ in asked), *PROMPTS], "sampling": [*sampling, *[FREE] * len(PROMPTS)]},
        {"prompts": PROMPTS, "sampling": FREE},
    ]
    engine = tiny_engine(
        tiny_text,
        on(),
        skip_tokenizer_init=False,
        max_num_seqs=64,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
    )
    (result,) = run_engines([{"engine": engine, "calls": calls}])
    mixed, free = result["calls"]
    answers = {}
    for (kind, prompt, p), (tokens,), (text,), (finished,) in zip(
        asked, *(mixed[key][: len(asked)] for key in ("tokens", "texts", "finished")), strict=True
    ):
        answers.setdefault((kind, p), []).append((prompt, tokens, text, finished))
    return answers, mixed["tokens"][len(asked) :], free["tokens"]


@pytest.mark.parametrize("p", [0, 1])
@pytest.mark.parametrize("kind", GRAMMARS)
def test_each_token_is_the_best_of_what_the_grammar_allows(kind, p, results, oracle, tiny_text):
    process = mask(tiny_text, kind, GRAMMARS[kind])
    others = 0
    for prompt, tokens, _, finished in results[0][kind, p]:
        assert finished[0] == "stop"
        window = 5 if p else 0
        assert follow(oracle, prompt, tokens, process, window=window) is None, "a near tie: choose another seed"
        others += first_difference(oracle, prompt, tokens, process, window=5 - window) is not None
        assert first_difference(oracle, prompt, tokens, window=window) is not None, "the grammar did not matter"
    assert others, "the selection did not matter"


@pytest.mark.parametrize("p", [0, 1])
def test_the_answers_are_well_formed(p, results):
    texts = {kind: [text for _, _, text, _ in results[0][kind, p]] for kind in GRAMMARS}
    for text in texts["json"]:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert all(re.fullmatch(PATTERN, text) for text in texts["regex"])
    assert set(texts["choice"]) <= set(GRAMMARS["choice"])
    assert all(re.fullmatch(r"\d\d?([-+*]\d\d?){2}", text) for text in texts["grammar"])


def test_requests_without_a_grammar_beside_them_are_answered_as_alone(results):
    _, beside, alone = results
    assert beside == alone
