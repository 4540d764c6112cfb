"""A norm and a head of our own, with the float64 answer; shared by the tests of both scans."""

import dataclasses
import math
from functools import partial

import oracle
import torch

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.kernels import statistics_of_finished
from confident_decoding.model_head import ModelHead, RmsNorm

H, V, N = 16, 97, 12


class ToyModel:
    """RMS norm and a head; counts the rows of each projection."""

    def __init__(
        self,
        seed=0,
        dtype=torch.float32,
        rows_per_read=None,
        on_device=False,
        fused=False,
        hidden=H,
        device="cpu",
        top_ids=False,
        vocab=V,
    ):
        g = torch.Generator().manual_seed(seed)
        self.hidden, self.device = hidden, device
        self.gain = (torch.rand(hidden, generator=g) + 0.5).to(dtype).to(device)
        self.weight = (torch.randn(vocab, hidden, generator=g) * 0.7 * (H / hidden) ** 0.5).to(dtype).to(device)
        self.projected = []
        statistics = partial(statistics_of_finished, first_id=0 if top_ids else None)
        self.head = ModelHead(self.norm, self.project, statistics, vocab, rows_per_read, top_ids=top_ids)
        if on_device:  # rounds whose counts the host may not read
            self.head = dataclasses.replace(
                self.head,
                counts_on_host=False,
                weight=self.weight,
                fused_norm=RmsNorm(self.gain, 1e-6) if fused else None,
                reads=(self.weight, self.gain),
            )

    def norm(self, x):
        assert x.is_contiguous()
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.gain

    def project(self, x):
        assert x.is_contiguous()
        self.projected.append(len(x))
        return x @ self.weight.T

    def packed(self, rows, depths, seed=1):
        g = torch.Generator().manual_seed(seed)
        spread = torch.linspace(3, 0.5, len(depths))[:, None, None]
        raw = torch.randn(len(depths), rows, self.hidden, generator=g).to(self.gain.dtype) * spread.to(self.gain.dtype)
        raw = raw.to(self.device)
        states = torch.stack([self.norm(raw[i].contiguous()) if d == 0 else raw[i] for i, d in enumerate(depths)])
        return states.transpose(0, 1).reshape(rows, -1)

    def logits64(self, packed, plan):
        """float64 logits, numpy, of each row: a list over the plan's depths."""
        weight, gain = self.weight.double().numpy(), self.gain.double().numpy()
        return [
            [
                weight @ (state * (gain / math.sqrt((state**2).mean() + 1e-6) if d else 1.0))
                for d, state in zip(plan.depths, row, strict=True)
            ]
            for row in packed.double().numpy().reshape(len(packed), len(plan.depths), H)
        ]

    def expected(self, packed, plan):
        """Depth and float64 logits of each row."""
        rows = []
        for logits in self.logits64(packed, plan):
            if plan.fixed_depth is not None:
                rows.append((plan.fixed_depth, logits[1]))
                continue
            h = [oracle.entropy(x) for x in logits]
            d = 0 if 0 < plan.min_entropy >= h[0] else oracle.depth(h, plan.window, plan.shift, plan.candidates)
            rows.append((d, logits[d]))
        return rows


def assert_same_selection(found, expected, lazily=False):
    """Depths, logits, and the entropies that a lazy scan has looked at; ``lazily``: it must have left some out."""
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.final_entropies, expected.final_entropies)
    if expected.entropies is not None:
        looked = ~found.entropies.isnan()
        torch.testing.assert_close(found.entropies[looked], expected.entropies[looked])
        assert not (lazily and looked.all()), "it was not lazy"


def plan_of(**keys):
    return ConfidentDecodingConfig(**keys).resolve(N)


PLANS = [
    {},
    {"select_method": "trough-m1"},
    {"select_method": "trough-m2"},
    {"select_method": "trough-p1"},
    {"select_method": "trough-p2"},
    {"trough_backtrack_ratio": 0.5},
    {"trough_max_backtrack_layers": -1},
    {"trough_max_backtrack_layers": 2},
    {"trough_max_backtrack_layers": 1},
    {"select_method": "last-m1"},
    {"select_method": "last-m8"},
    {"select_method": "trough-m2", "trough_backtrack_ratio": 0.5},
]
