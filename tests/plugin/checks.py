"""Comparison of an engine's greedy output with the transformers oracle."""

import numpy as np

TIE = 1e-4  # nats of entropy, or logits between the two best: below it two correct programs may differ


def first_difference(oracle, prompt, generated, process=None, **settings):
    """The decision at which ``generated`` leaves the oracle's choices after the same prefix, or None.

    By induction, None is equality with the oracle's own greedy run; after a difference the rest of the
    sequence is not judged. ``process(logits [V], generated so far)`` is what a request's own settings do to the
    selected layer's logits.
    """
    rows = oracle.select([*prompt, *generated[:-1]], len(prompt) - 1, **settings)
    for position, (token, (logits, depth, gap, margin)) in enumerate(zip(generated, rows, strict=True)):
        if process is not None:
            logits = process(logits, generated[:position])  # noqa: PLW2901
            second, first = np.partition(logits, -2)[-2:]
            margin = float(first - second)  # noqa: PLW2901
        if int(logits.argmax()) != token:
            return {"position": position, "gap": gap, "margin": margin, "depth": depth}
    return None


def follow(oracle, prompt, generated, process=None, **settings):
    """`first_difference`, which must be a near tie."""
    tie = first_difference(oracle, prompt, generated, process, **settings)
    assert tie is None or min(tie["gap"], tie["margin"]) < TIE, f"differs from the oracle without a tie: {tie}"
    return tie
