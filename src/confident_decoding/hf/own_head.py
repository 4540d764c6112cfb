"""Logits of any final state through the model's own code, and the proof that they are.

Whatever a class does after its decoder (rescaling states, output head, scale and soft cap of logits) is
in its top-level forward. That forward is called again with the decoder answering at once with the states
in question, so nothing of it is written down here a second time.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.hf.parts import UnsupportedModelError
from confident_decoding.hf.watch import answering

Project = Callable[[Tensor], Tensor]
"""Final states ``[m, H]`` to logits ``[m, V]``."""
PASS_OUTPUT_HEAD = (
    "Pass output_head=, a callable from final states [m, H] to logits [m, V] with the model's own scale and soft cap."
)
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}  # of the largest value; 1e-3 in other dtypes


def last_state(output: Any) -> Tensor | None:
    """``[B, H]``: the last position of a decoder's output, or None if that holds no final state."""
    state = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
    return state[:, -1] if isinstance(state, Tensor) and state.ndim == 3 else None


def own_head(model: Any, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Project:
    """The head of one forward of ``model``.

    Args:
        model: The whole model.
        decoder: The module within it whose output is the final state.
        args: Positional arguments of the forward.
        kwargs: Its other arguments.
        output: What ``decoder`` returned in it.
    """

    def project(states: Tensor) -> Tensor:
        calls = 0

        def answer() -> Any:
            nonlocal calls
            calls += 1
            return _with_state(output, states[:, None])

        with answering(decoder, answer):
            logits: Tensor = model.forward(*args, **kwargs).logits
        if calls != 1 or logits.ndim != 3 or len(logits) != len(states):
            raise UnsupportedModelError(
                f"confident-decoding: the forward of {type(model).__name__} called {type(decoder).__name__} {calls} "
                f"times and made logits {list(logits.shape)} of {len(states)} states. {PASS_OUTPUT_HEAD}"
            )
        return logits[:, -1]

    return project


def _with_state(output: Any, state: Tensor) -> Any:
    if isinstance(output, tuple):
        return (state, *output[1:])
    changed = copy.copy(output)
    changed.last_hidden_state = state
    return changed


def differs(got: Tensor, expected: Tensor) -> float | None:
    """The largest difference as a share of the largest value if it is more than rounding, else None."""
    if got.shape != expected.shape:
        return torch.inf
    tolerance = max(TOLERANCE.get(tensor.dtype, 1e-3) for tensor in (got, expected))
    got, expected = got.to(expected.device, torch.float32), expected.float()
    finite = expected.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return torch.inf
    wrong = float((got - expected)[finite].abs().max() / expected[finite].abs().max().clamp(min=1e-6))
    return None if wrong <= tolerance else wrong


def prove_norm(model: Any, norm: Project, last_stream: Tensor, entering_norm: Tensor, final: Tensor) -> None:
    """``norm`` alone turns the stream after the last layer ``[B, H]`` into the final state ``[B, H]``.

    Raises:
        UnsupportedModelError: It does not.
    """
    name = type(model).__name__
    if (wrong := differs(entering_norm, last_stream)) is not None:
        raise UnsupportedModelError(
            f"confident-decoding: {name} changes the residual stream between its last decoder layer and its final norm "
            f"(relative difference {wrong:.2g}), so earlier layers cannot be read through that norm alone. If another "
            "module is the final norm, pass final_norm=."
        )
    if (wrong := differs(norm(last_stream), final)) is not None:
        raise UnsupportedModelError(
            f"confident-decoding: the final norm of {name} does not give its own final state (relative difference "
            f"{wrong:.2g}). Pass final_norm=, the module or dotted name of the norm before its output head."
        )


def prove_head(model: Any, project: Project, final: Tensor, logits: Tensor) -> None:
    """``project`` gives the model's own logits ``[B, V]`` for its own final states ``[B, H]``, in any batch.

    Raises:
        UnsupportedModelError: It does not.
    """
    try:
        got = project(torch.cat([final.flip(0), final]))
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(_not_reproduced(model, f"{type(error).__name__}: {error}")) from error
    if (wrong := differs(got, torch.cat([logits.flip(0), logits]))) is not None:
        raise UnsupportedModelError(_not_reproduced(model, f"relative difference {wrong:.2g}"))


def _not_reproduced(model: Any, why: str) -> str:
    return (
        f"confident-decoding: the logits of {type(model).__name__} could not be reproduced from its final states "
        f"({why}). {PASS_OUTPUT_HEAD}"
    )
