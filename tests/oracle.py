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


def ends_at_nan(entropies, window):
    """Whether the trough is where it is because a number is missing: the final one, or the next."""
    d = trough(entropies, window)
    return d < window and (math.isnan(entropies[0]) or math.isnan(entropies[d + 1]))


def depth(entropies, window, shift, candidates):
    """A NaN that has ended the scan leaves the row where it is: its candidate must not be selected by the shift."""
    shift = 0 if ends_at_nan(entropies, window) else shift
    return min(max(trough(entropies, window) + shift, 0), candidates - 1)


class TransformersOracle:
    """Confident Decoding on a transformers model: teacher-forced, float64 entropies.

    Args:
        path: Checkpoint folder.
        dtype: Its weights are rounded to this; the forward runs in float32, the head in float64.
    """

    def __init__(self, path, dtype):
        import torch
        import transformers

        torch.set_num_threads(1)
        self.torch = torch
        (architecture,) = transformers.AutoConfig.from_pretrained(path).architectures
        load = getattr(transformers, architecture).from_pretrained
        self.model = load(path, dtype=dtype, attn_implementation="eager").float().eval()
        self.config = self.model.config.get_text_config()
        self.num_layers = self.config.num_hidden_layers

    def _after_norm(self, states):
        return states / self.config.logits_scaling if self.config.model_type == "minicpm3" else states

    def _after_head(self, logits):
        config, cap = self.config, getattr(self.config, "final_logit_softcapping", None)
        if config.model_type == "granite":
            logits = logits / config.logits_scaling
        elif config.model_type == "cohere2_moe":
            logits = logits * config.logit_scale
        elif config.model_type == "muse_glimmer_text":
            logits = logits * config.output_multiplier
        return self.torch.tanh(logits / cap) * cap if cap else logits

    def candidates(self, ids, depths=None, **inputs):
        """States that the head is applied to ``[n, T, H]``, and logits ``[n, T, V]``, depth by depth, float64."""
        torch, n = self.torch, self.num_layers
        with torch.inference_mode():
            out = self.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False, **inputs)
            text = self.model.get_decoder()
            text = getattr(text, "model", text)
            # hidden_states[i] enters layer i; the last one is normed already.
            streams = [out.hidden_states[n - d] for d in (range(n) if depths is None else depths)]
            normed = [h if h is out.hidden_states[n] else text.norm(h) for h in streams]
            states = torch.cat([self._after_norm(h) for h in normed]).double()
            head = self.model.get_output_embeddings()
            logits = self._after_head(states @ head.weight.double().T)
            if depths is None or depths[0] == 0:
                # The reading of hidden_states above is transformers' own last layer.
                assert torch.allclose(logits[0], out.logits[0].double(), atol=1e-4, rtol=1e-4)
            if suppressed := self.model.generation_config.suppress_tokens:
                # transformers does this while generating; the distribution that sampling starts from is without them.
                logits[..., suppressed] = -torch.inf
            return states.numpy(), logits.numpy()

    def rows(self, ids, first, depths):
        """Logits ``[len(depths), rows, V]`` float64 of positions ``first ..`` of one sequence."""
        return self.candidates(ids, depths)[1][:, first:]

    def select(self, ids, first, window, shift=0, candidates=None, fixed=None, min_entropy=0.0):
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
                if min_entropy:
                    gap = min(gap, abs(h[0] - min_entropy))
                    d = 0 if h[0] <= min_entropy else d
            chosen = logits[d, row]
            second, first_ = np.partition(chosen, -2)[-2:]
            result.append((chosen, fixed if fixed is not None else d, gap, float(first_ - second)))
        return result
