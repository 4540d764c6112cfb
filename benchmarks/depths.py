"""Depths that the scan on a GPU finds, against float64, on random and on real rows.

python -m benchmarks.depths                      # random rows
python -m benchmarks.depths --rows FILE.pt       # {"packed": [B, n*H], "weight": [V, H], "gain": [H], "eps": float}
python -m benchmarks.depths --save FILE.pt       # makes such a file from the embedded model (no GPU needed)
"""

import argparse
import dataclasses
from pathlib import Path

import torch

from confident_decoding import planner
from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.kernels import statistics_of_finished
from confident_decoding.model_head import ModelHead, RmsNorm
from confident_decoding.scan import replayed, select


def exact_entropies(packed, weight, gain, n, eps=1e-6):
    """float64 entropies ``[n, B]``, and how far rounding can move each at most.

    To first order: every logit is off by half a bf16 step, and so is every normed state, all in the worst
    direction for the entropy.
    """
    exact, rounding = [], []
    for d, state in enumerate(packed.double().view(len(packed), n, -1).unbind(1)):
        normed = state * torch.rsqrt(state.square().mean(-1, keepdim=True) + eps) * gain.double() if d else state
        logits = normed @ weight.double().T
        p, logp = logits.softmax(-1), logits.log_softmax(-1)
        h = -(p * logp).sum(-1)
        exact.append(h)
        rounding.append((p * (logp + h[:, None]).abs() * logits.abs()).sum(-1) * 2.0**-8)
    return torch.stack(exact).cpu(), torch.stack(rounding).cpu()


def decided(exact, rounding, window):
    """float64 depths ``[B]``, and the rows whose scan no rounding can turn."""
    gaps = exact[1:] - exact[:-1]
    sure = gaps.abs() > rounding[1:] + rounding[:-1]
    depth = (gaps < 0)[:window].long().cumprod(0).sum(0)
    looked = torch.arange(window)[:, None] <= depth[None]
    return depth, (sure[:window] | ~looked).all(0)


def random_rows(rows, hidden, vocab, n):
    """States that share most of their direction, as a model's last layers do."""
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    walk = normal(rows, n, hidden).mul(0.35).cumsum(1) + normal(rows, 1, hidden)
    walk[:, 0] *= torch.rsqrt(walk[:, 0].square().mean(-1, keepdim=True))
    return {
        "packed": walk.reshape(rows, -1).bfloat16(),
        "weight": (normal(vocab, hidden) * 3 / hidden**0.5).bfloat16(),
        "gain": (1 + 0.1 * normal(hidden)).bfloat16(),
        "eps": 1e-6,
    }


def real_rows(rows=512, n=10):
    """Rows of the embedded model on this project's own README."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from demo.checkpoint import smollm2

    path = smollm2()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    text = Path(__file__).resolve().parent.parent.joinpath("README.md").read_text()
    ids = AutoTokenizer.from_pretrained(path)(text, return_tensors="pt").input_ids[:, :rows]
    streams = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, __, out: streams.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        model(ids)
        final = model.model.norm(streams[-1])[0]
    packed = torch.cat([final, *(streams[-1 - d][0] for d in range(1, n))], -1)
    norm = model.model.norm
    return {
        "packed": packed,
        "weight": model.lm_head.weight.data,
        "gain": norm.weight.data,
        "eps": norm.variance_epsilon,
    }


def check(name, data):
    """Print how many depths each form of the scan finds."""
    packed, weight, gain = (data[key].cuda() for key in ("packed", "weight", "gain"))
    hidden = weight.shape[1]
    n = packed.shape[1] // hidden
    plan = ConfidentDecodingConfig(trough_max_backtrack_layers=n).resolve(max(30, n))
    expected, sure = decided(*exact_entropies(packed, weight, gain, n, data["eps"]), plan.window)
    print(f"{name}: {len(packed)} rows, {int(sure.sum())} decided beyond rounding, depths up to {int(expected.max())}")
    dense = ModelHead(
        None,
        lambda x: x @ weight.T,
        statistics_of_finished,
        len(weight),
        None,
        False,
        weight,
        RmsNorm(gain, data["eps"]),
    )
    per_read = planner.rows_per_read(packed.device, hidden, len(weight), packed.dtype, plain=True)
    lazy = dataclasses.replace(dense, rows_per_read=min(per_read, len(packed) // 4))
    graphs = replayed(plan, lazy, len(packed), packed.shape[1], packed.dtype)
    ok = True
    for form, head, replays in (("dense", dense, None), ("rounds", lazy, None), ("rounds, as a graph", lazy, graphs)):
        depths = select(packed, plan, head, replays=replays).depths.cpu()
        right, right_sure = int((depths == expected).sum()), int((depths == expected)[sure].sum())
        ok &= right_sure == int(sure.sum()) > 0
        print(f"  {form:20} {right}/{len(packed)}, of the decided ones {right_sure}/{int(sure.sum())}")
    print("PASS" if ok else "FAIL")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    if args.save:
        torch.save(real_rows(), args.save)
        return
    check("random, H=4096, V=151,936", random_rows(384, 4096, 151_936, 10))
    check("random, H=1024, V=32,003", random_rows(1000, 1024, 32_003, 12))
    if args.rows:
        check("the embedded model's rows", torch.load(args.rows))


if __name__ == "__main__":
    main()
