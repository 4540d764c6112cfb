"""What a request's own settings do to the logits that it is sampled from: definitions in numpy, float64.

The order is vLLM's: what is allowed, what is banned, biases, penalties, temperature, then the truncations.
"""

import numpy as np
from models.row import BASE

END_OF_SEQUENCE = BASE["eos_token_id"]


def _without(logits, ids):
    logits = logits.copy()
    logits[list(ids)] = -np.inf
    return logits


def allowed(logits, ids):
    return np.where(np.isin(np.arange(len(logits)), list(ids)), logits, -np.inf)


def bad_words(logits, words, generated):
    """The last token of each word is banned where the tokens before it have just been generated."""
    ends = [word[-1] for word in words if list(word[:-1]) == list(generated)[len(generated) - len(word) + 1 :]]
    return _without(logits, ends)


def min_tokens(logits, number, stop_ids, generated):
    """Nothing that would stop, the end of sequence included, is drawn before."""
    return _without(logits, stop_ids) if len(generated) < number else logits


def logit_bias(logits, bias):
    logits = logits.copy()
    for token, value in bias.items():
        logits[int(token)] += value
    return logits


def penalties(logits, prompt, generated, presence=0.0, frequency=0.0, repetition=1.0):
    """Repetition counts prompt and answer, the other two the answer (OpenAI's definition)."""
    counts = np.bincount(np.asarray(generated, dtype=int), minlength=len(logits))
    seen = counts > 0
    seen[list(prompt)] = True
    logits = np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits)
    return logits - frequency * counts - presence * (counts > 0)


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def log_softmax(logits):
    top = logits.max()
    return logits - top - np.log(np.exp(logits - top).sum())


def min_p(logits, share):
    p = softmax(logits)
    return np.where(p >= share * p.max(), logits, -np.inf)


def top_k(logits, k):
    return np.where(logits >= np.sort(logits)[-k], logits, -np.inf)


def top_p(logits, share):
    """The smallest set of most likely tokens whose probabilities add up to ``share``."""
    order = np.argsort(-logits)
    p = softmax(logits)[order]
    kept = np.cumsum(p) - p < share
    return allowed(logits, order[kept])


def processed(logits, options, prompt, generated, words=()):
    """What the token is drawn from; ``words`` are the tokens of ``bad_words``."""
    if "allowed_token_ids" in options:
        logits = allowed(logits, options["allowed_token_ids"])
    logits = bad_words(logits, words, generated)
    stops = {*options.get("stop_token_ids", ()), END_OF_SEQUENCE}
    logits = min_tokens(logits, options.get("min_tokens", 0), stops, generated)
    logits = logit_bias(logits, options.get("logit_bias", {}))
    names = ("presence", "frequency", "repetition")
    asked = {name: options[f"{name}_penalty"] for name in names if f"{name}_penalty" in options}
    logits = penalties(logits, prompt, generated, **asked)
    if not options["temperature"]:
        return logits
    logits = logits / options["temperature"]
    for name, truncate in (("min_p", min_p), ("top_k", top_k), ("top_p", top_p)):
        if name in options:
            logits = truncate(logits, options[name])
    return logits
