"""From entropies to selected depths: scan, shift, mix (pure torch, no host synchronisation)."""

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


def scan_depths(entropies: Tensor, window: int) -> Tensor:
    """The trough of each row: the first depth whose next depth is not strictly lower.

    A tie stops the scan, and so does a NaN (it compares false). Paper, section 3.

    Args:
        entropies: ``[n, B]`` in nats, row ``d`` of the first dimension being depth ``d``.
        window: Deepest depth that may be reached, below n.

    Returns:
        Depths ``[B]``, int64, between 0 and ``window``.

    Example:
        >>> scan_depths(torch.tensor([[3.0], [2.0], [2.5], [1.0]]), window=3)
        tensor([1])
    """
    descends = entropies[1 : window + 1] < entropies[:window]
    return descends.to(torch.int64).cumprod(0).sum(0)


def shift_depths(depths: Tensor, shift: int, candidates: int) -> Tensor:
    """Move depths ``[B]`` by ``shift`` (+ = shallower layer) and clamp them to ``[0, candidates - 1]``."""
    return (depths + shift).clamp(0, candidates - 1) if shift else depths


def settle_depths(troughs: Tensor, final_entropies: Tensor, plan: SelectionPlan) -> Tensor:
    """From the trough to the depth that the method selects: its shift, and the rows that it leaves alone.

    Args:
        troughs: ``[B]``, from the scan.
        final_entropies: ``[B]`` nats at depth 0. Rows at or under ``plan.min_entropy`` (if that is not 0)
            stay at the final layer.
        plan: The method.
    """
    depths = shift_depths(troughs, plan.shift, plan.candidates)
    if plan.min_entropy == 0:
        return depths
    return torch.where(final_entropies <= plan.min_entropy, torch.zeros_like(depths), depths)


def mix_depths(depths: Tensor, draws: Tensor | None, p: float) -> Tensor:
    """Keep each depth ``[B]`` with probability p, else the final layer: selected if ``u < p``.

    Args:
        depths: ``[B]`` int64.
        draws: ``[B]`` float64 in ``[0, 1)``, one ``u`` a row; not looked at where p is 0 or 1.
        p: So 0 never selects and 1 always does.

    Raises:
        ValueError: ``0 < p < 1`` without draws.
    """
    if p == 1:
        return depths
    if p == 0:
        return torch.zeros_like(depths)
    if draws is None:
        raise ValueError("mixing with 0 < p < 1 needs one draw a row")
    return torch.where(draws < p, depths, torch.zeros_like(depths))


def hashed_draws(rows: Tensor, *keys: int) -> Tensor:
    """Uniform draws that depend on nothing but their keys: equal on every rank, no generator.

    Chained splitmix64 finalisers (Steele, Lea, Flood 2014) over the keys, then over ``rows``.

    Args:
        rows: ``[B]`` int64, what tells the draws of one call apart.
        keys: Whole numbers that tell calls apart, such as a seed and a call counter.

    Returns:
        ``[B]`` float64 in ``[0, 1)``, multiples of 2**-53.
    """
    state = _GOLDEN
    for key in keys:
        state = _finalise(state ^ (key & _MASK64))
    bits = _finalise_tensor(rows ^ _signed(state))
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


def _finalise(z: int) -> int:
    z = (z + _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * _MIX_A) & _MASK64
    z = ((z ^ (z >> 27)) * _MIX_B) & _MASK64
    return z ^ (z >> 31)


def _finalise_tensor(z: Tensor) -> Tensor:
    # int64 multiplication and addition wrap, as the 64-bit definition wants.
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_A)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_B)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's ``>>`` on int64 is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
