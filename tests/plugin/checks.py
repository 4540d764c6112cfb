"""Comparison of an engine's greedy output with the transformers oracle."""

TIE = 1e-4  # nats of entropy, or logits between the two best: below it two correct programs may differ


def follow(oracle, prompt, generated, **settings):
    """Check that each generated token is the oracle's choice after the same prefix.

    By induction this is equality with the oracle's own greedy run. Where they differ first, the
    decision must have been a near tie; it is returned, and the rest of the sequence is not judged.
    """
    rows = oracle.select([*prompt, *generated[:-1]], len(prompt) - 1, **settings)
    for position, (token, (logits, depth, gap, margin)) in enumerate(zip(generated, rows, strict=True)):
        if int(logits.argmax()) != token:
            tie = {"position": position, "gap": gap, "margin": margin, "depth": depth}
            assert min(gap, margin) < TIE, f"differs from the oracle without a tie: {tie}"
            return tie
    return None
