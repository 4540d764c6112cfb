"""Made-up recordings and a made-up engine, for tests that need no model."""

from dataclasses import dataclass, field

import numpy as np

from confident_decoding.analysis.recorder import TOPS, Seen
from confident_decoding.analysis.recording import Sequence
from confident_decoding.analysis.trace import About

WORDS = [" the", " a", ".", " gravity", "\n", " is", ",", " moon", " sea", "<|im_end|>", " of", " blue"]


def about(candidates=6, window=4, trajectory="standard", **changes):
    known = {"model": "made/up", "num_layers": 12, "dtype": "float32"}
    versions = {"confident-decoding": "0", "vllm": "0"}
    known.update(changes)
    return About(candidates=candidates, window=window, trajectory=trajectory, versions=versions, **known)


def sequence(rows, candidates=6, tops=None, seed=0, vocabulary=12):
    """Random entropies that fall often enough for all depths, and candidates that often agree."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([-0.5, 0.5], p=[0.65, 0.35], size=(rows, candidates)) * rng.random((rows, candidates))
    entropies = np.abs(3 + np.cumsum(steps, 1)).astype(np.float32)
    best = np.where(rng.random((rows, candidates)) < 0.6, rng.integers(vocabulary, size=(rows, 1)), 0)
    best = np.where(best == 0, rng.integers(vocabulary, size=(rows, candidates)), best).astype(np.int32)
    kept = rows if tops is None else min(tops, rows)
    top_tokens = rng.integers(vocabulary, size=(kept, candidates, TOPS)).astype(np.int32)
    top_tokens[:, :, 0] = best[:kept]
    chances = np.sort(rng.dirichlet(np.ones(TOPS), size=(kept, candidates)), -1)[..., ::-1].astype(np.float32)
    seen = Seen(entropies, best, np.zeros(rows, np.int16), top_tokens, chances)
    return Sequence([1, 2], rng.integers(vocabulary, size=rows).astype(np.int32), seen)


def pieces(made):
    return [WORDS[token % len(WORDS)] for token in made.tokens]


class Tokenizer:
    """As much of one as the analysis asks for."""

    def decode(self, ids):
        return "".join(WORDS[i % len(WORDS)] for i in ids)

    def convert_ids_to_tokens(self, ids):
        return [WORDS[i % len(WORDS)] for i in ids]


@dataclass
class Engine:
    """Where `run.analyse` looks."""

    num_layers: int = 12
    depths: int = 6
    window: int = 4
    dtype: str = "float32"
    tokenizer: Tokenizer = field(default_factory=Tokenizer)

    def keep_tops(self, tokens):
        pass
