"""Loading, padding and judging that the tests of this folder share."""

import math
from collections import namedtuple
from itertools import pairwise

import numpy as np
import oracle
import torch
import transformers

import confident_decoding.hf

TIE = 1e-4  # nats or logits: below it two correct programs may differ
UNLIMITED = {"trough_max_backtrack_layers": -1}

Row = namedtuple("Row", "logits depth gap")


def load(path):
    """The checkpoint's own class, float32."""
    (architecture,) = transformers.AutoConfig.from_pretrained(path).architectures
    return getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()


def padded(prompts, pad=0):
    """Left-padded ``input_ids`` and ``attention_mask``."""
    width = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[pad] * (width - len(ids)) + ids for ids in prompts]),
        "attention_mask": torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
    }


def greedy(tokens):
    """Exactly that many tokens; the end token is one like any other."""
    return {"do_sample": False, "max_new_tokens": tokens, "eos_token_id": None}


def random_prompts(lengths=(5, 17, 11), vocab=480, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(3, vocab, length).tolist() for length in lengths]


def rows_with(reference, ids, first, **inputs):
    """What the unlimited trough selects at positions ``first ..``, for a model with further ``inputs``."""
    logits = reference.candidates(ids, **inputs)[1][:, first:]
    rows = []
    for at in range(logits.shape[1]):
        entropies = [oracle.entropy(row) for row in logits[:, at]]
        d = oracle.trough(entropies, len(entropies) - 1)
        gap = min((abs(b - a) for a, b in pairwise(entropies[: d + 2])), default=math.inf)
        rows.append(Row(logits[d, at], d, gap))
    return rows


PROMPTS = random_prompts()


def confident(model, prompts=PROMPTS, config=UNLIMITED, **options):
    given = {**padded(prompts), **greedy(10), "confident_config": config, **options}
    return model.generate(custom_generate=confident_decoding.hf.generate, **given)


def new(sequences, prompts=PROMPTS):
    return sequences[:, max(map(len, prompts)) :]
