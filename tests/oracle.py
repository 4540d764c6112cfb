"""Independent float64 references, written from the definitions; nothing is shared with the package."""

import math

import numpy as np


def entropy(logits):
    """-sum p log p in nats of one row of logits (numpy, float64); -inf counts as p = 0."""
    x = np.asarray(logits, dtype=np.float64)
    if np.isnan(x).any() or np.isposinf(x).any() or np.isneginf(x).all():
        return math.nan
    p = np.exp(x - x.max())
    p /= p.sum()
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def trough(entropies, window):
    """d = 0; while d < window and H[d+1] < H[d]: d += 1."""
    d = 0
    while d < window and entropies[d + 1] < entropies[d]:
        d += 1
    return d


def depth(entropies, window, shift, candidates):
    return min(max(trough(entropies, window) + shift, 0), candidates - 1)


class TransformersOracle:
    """Confident Decoding on a transformers model: teacher-forced, float64 entropies.

    Args:
        path: Checkpoint folder.
        dtype: torch dtype of the model's own forward.
    """

    def __init__(self, path, dtype):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
        self.num_layers = self.model.config.num_hidden_layers
        self.cap = getattr(self.model.config, "final_logit_softcapping", None)

    def rows(self, ids, first, depths):
        """Logits ``[len(depths), rows, V]`` float64 of positions ``first ..`` of one sequence."""
        torch = self.torch
        with torch.inference_mode():
            inner = self.model.model
            out = inner(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
            states = []
            for d in depths:
                # hidden_states[i] enters layer i; the last one is normed already.
                h = out.last_hidden_state if d == 0 else inner.norm(out.hidden_states[self.num_layers - d])
                states.append(h[0, first:])
            logits = torch.stack([self.model.lm_head(s).double() for s in states])
            return (torch.tanh(logits / self.cap) * self.cap if self.cap else logits).numpy()

    def select(self, ids, first, window, shift=0, candidates=None, fixed=None):
        """Per row from ``first``: selected logits, depth, smallest decisive entropy gap, top-2 margin."""
        if fixed is not None:
            depths = [fixed]
        else:
            candidates = candidates or window + 1
            depths = range(min(candidates, window + max(shift, 0) + 1))
        logits = self.rows(ids, first, depths)
        result = []
        for row in range(logits.shape[1]):
            gap, d = math.inf, 0
            if fixed is None:
                h = [entropy(logits[i, row]) for i in range(len(depths))]
                reached = trough(h, window)
                gap = min((abs(h[i + 1] - h[i]) for i in range(min(reached + 1, window))), default=math.inf)
                d = depth(h, window, shift, candidates)
            chosen = logits[d, row]
            second, first_ = np.partition(chosen, -2)[-2:]
            result.append((chosen, fixed if fixed is not None else d, gap, float(first_ - second)))
        return result
