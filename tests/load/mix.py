"""A seeded mix of requests as a busy server gets them; each has one right answer (greedy, or sampled with a seed)."""

import random
from dataclasses import dataclass

from models.row import VOCAB

SPECIAL = 17  # ids from here on are bytes and short merges in SmolLM2's vocabulary: text, no special tokens
STOPS = ["th", " a", "er", "5", "Q", "(", " s"]


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        number: Its place in the mix.
        body: Of the HTTP request.
        leaves_after: The client is gone after so many chunks of a stream, or so many times 10 ms of another answer.
    """

    number: int
    body: dict
    leaves_after: int | None = None


def mix(count, seed):
    """``count`` requests; their arguments depend on nothing but ``seed``."""
    pick = random.Random(seed)
    shared = [pick.randrange(SPECIAL, VOCAB) for _ in range(40)]  # what prefix caching can find
    return [_ask(pick, number, shared) for number in range(count)]


def _ask(pick, number, shared):
    length = pick.choice([3, 5, 9, 17, 33, 60])
    prompt = [pick.randrange(SPECIAL, VOCAB) for _ in range(length)]
    if length > 16 and pick.random() < 0.3:
        prompt = shared[: length - 5] + prompt[-5:]
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": pick.randint(1, 24),
        "stream": pick.random() < 0.4,
        "return_token_ids": True,
        "temperature": 0,
    }
    if pick.random() < 0.5:
        body |= {"temperature": pick.choice([0.5, 0.8, 1.2]), "seed": pick.randrange(1 << 31)}
        body |= pick.choice([{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.02}])
        if pick.random() < 0.2:
            body["n"] = 2
    if pick.random() < 0.3:
        body |= {"logprobs": pick.choice([0, 2, 5])}
    if pick.random() < 0.25:
        body |= pick.choice(
            [
                {"repetition_penalty": 1.2},
                {"presence_penalty": 0.5},
                {"min_tokens": min(2, body["max_tokens"])},
                {"ignore_eos": True},
                {"logit_bias": {str(prompt[0]): 4.0}},
                {"allowed_token_ids": list(range(SPECIAL, VOCAB, 3))},
            ]
        )
    if pick.random() < 0.25:
        body["stop"] = pick.sample(STOPS, 2)
    arguments = _arguments(pick)
    if arguments:
        body["vllm_xargs"] = arguments
        if 0 < arguments.get("confident_p", 0) < 1:
            body["seed"] = pick.randrange(1 << 31)
    leaves = pick.randint(1, 6) if pick.random() < 0.12 else None
    if leaves is not None:  # long before the answer is whole
        body |= {"max_tokens": 60, "ignore_eos": True}
        body.pop("stop", None)
    return Ask(number, body, leaves)


def _arguments(pick):
    kind = pick.random()
    if kind < 0.3:
        return {}
    if kind < 0.8:
        return {"confident_p": pick.choice([0, 0.5, 1])}
    return pick.choice(
        [
            {"confident_max_backtrack_layers": 3},
            {"confident_max_backtrack_layers": 2, "confident_p": 0.5},
            {"confident_select_method": "trough-p1"},
            {"confident_select_method": "trough-m1"},
            {"confident_select_method": "last-m2", "confident_p": 0.5},
            {"confident_min_entropy": 5.5},
        ]
    )
