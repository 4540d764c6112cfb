"""Beam search by its definition, over the selected layers of the transformers oracle."""

import numpy as np

from plugin.processors import log_softmax


def search(oracle, prompt, width, tokens, window):
    """The best ``width`` of all continuations, step by step: ``[(tokens, score)]``; and the smallest margin."""
    beams, closest = [([], 0.0)], np.inf
    for _ in range(tokens):
        grown = []
        for so_far, score in beams:
            ((logits, *_),) = oracle.select([*prompt, *so_far], len(prompt) + len(so_far) - 1, window=window)
            grown += [([*so_far, token], score + value) for token, value in enumerate(log_softmax(logits))]
        grown.sort(key=lambda beam: -beam[1])
        closest = min(closest, grown[width - 1][1] - grown[width][1])
        beams = grown[:width]
    return beams, closest
