"""Replace the logits of each forward by those that a choice among the layers gives."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding.hf.own_head import (
    PASS_OUTPUT_HEAD,
    Project,
    differs,
    last_state,
    own_head,
    prove_head,
    prove_norm,
)
from confident_decoding.hf.parts import Parts, UnsupportedModelError
from confident_decoding.hf.watch import Watch

NOTHING = torch.empty(0)


@dataclass(frozen=True)
class Step:
    """What one forward left for the choice, at the last position of each sequence.

    Attributes:
        final: ``[B, H]`` final normed states.
        streams: Residual streams ``[B, H]`` by the number of the layer that they enter.
        logits: ``[B, V]``, the model's own.
        norm: Final norm, ``[m, H]`` to ``[m, H]``.
        project: The model's head and all that it does to logits, ``[m, H]`` to ``[m, V]``.
    """

    final: Tensor
    streams: dict[int, Tensor]
    logits: Tensor
    norm: Project
    project: Project


@dataclass
class _Seen:
    """What the hooks saw of one forward; states are ``[B, H]``."""

    streams: dict[int, Tensor] = field(default_factory=dict)
    after_layers: Tensor = NOTHING
    before_norm: Tensor = NOTHING
    final: Tensor = NOTHING
    outputs: dict[nn.Module, Any] = field(default_factory=dict)


def _last_position(output: Any) -> Tensor:
    """``[B, H]``, copied: a view would hold the whole prompt's states, and a layer may add to them in place."""
    states = output[0] if isinstance(output, tuple) else output
    return states[:, -1].clone() if isinstance(states, Tensor) and states.ndim == 3 else NOTHING


class Steering:
    """A model whose forwards return chosen logits, until `close`; the first one also proves its parts.

    Args:
        model: The model.
        parts: Its parts.
        wanted: Numbers of the layers whose entering streams the choice reads.
        choose: Logits ``[B, V]`` of a step.
        output_head: Instead of the model's own way from final states ``[m, H]`` to logits ``[m, V]``.
        pass_over: Forwards to leave alone first (chunks of a long prompt).
    """

    def __init__(
        self,
        model: Any,
        parts: Parts,
        wanted: Collection[int],
        choose: Callable[[Step], Tensor],
        *,
        output_head: Project | None = None,
        pass_over: int = 0,
    ) -> None:
        self._model, self._parts, self._choose, self._output_head = model, parts, choose, output_head
        self._pass_over, self._wanted = pass_over, len(wanted)
        self._seen = _Seen()
        self._decoder: nn.Module | None = None
        self._proven = False
        self._watch = Watch()
        for number in sorted(wanted):
            self._watch.entering(parts.layers[number], self._keep_stream(number))
        self._watch.leaving(parts.layers[-1], self._keep_after_layers)
        self._watch.entering(parts.norm, self._keep_before_norm)
        self._watch.leaving(parts.norm, self._keep_final)
        for module in parts.around if output_head is None else ():
            self._watch.leaving(module, self._keep_output(module))
        self._watch.replacing(model, self._after_forward)

    def resting(self, inner: Any) -> Any:
        """Logits processors or stopping criteria: what they do with the model is no step, and gets its own logits."""
        return self._watch.resting(inner)

    def close(self) -> None:
        """Leave the model as it was."""
        self._watch.close()

    def _keep_stream(self, number: int) -> Callable[[Any], None]:
        return lambda states: self._seen.streams.update({number: _last_position(states)})

    def _keep_after_layers(self, output: Any) -> None:
        self._seen.after_layers = _last_position(output)

    def _keep_before_norm(self, states: Any) -> None:
        self._seen.before_norm = _last_position(states)

    def _keep_final(self, states: Any) -> None:
        self._seen.final = _last_position(states)

    def _keep_output(self, module: nn.Module) -> Callable[[Any], None]:
        return lambda output: self._seen.outputs.update({module: output})

    def _after_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        seen, self._seen = self._seen, _Seen()
        if self._pass_over:
            self._pass_over -= 1
            return output
        with self._watch.rest():  # candidates go through the same modules
            output.logits = self._choose(self._step(args, kwargs, output.logits[:, -1], seen))[:, None]
        return output

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any], logits: Tensor, seen: _Seen) -> Step:
        shown = [state for state in (seen.final, *seen.streams.values()) if state is not NOTHING]
        if len(shown) < 1 + self._wanted:
            raise UnsupportedModelError(
                f"confident-decoding: a forward of {type(self._model).__name__} showed no single residual stream "
                f"[B, T, H] through all of its decoder layers into its final norm ({type(self._parts.norm).__name__}). "
                "A compiled model hides it: use it uncompiled. A model that skips layers or carries several streams "
                "cannot be used. Else pass final_norm=, the norm before the output head."
            )
        if not self._proven and not seen.final.isfinite().all(-1).any():
            raise UnsupportedModelError(
                f"confident-decoding: the final state of {type(self._model).__name__} is not finite, so that "
                "nothing can be selected. Does it overflow in this dtype?"
            )
        if not self._proven:
            prove_norm(self._model, self._norm, seen.after_layers, seen.before_norm, seen.final)
        project = self._output_head or self._own_head(args, kwargs, seen)
        if not self._proven:
            prove_head(self._model, project, seen.final, logits)
            self._proven = True
        streams = {number: state.to(seen.final) for number, state in seen.streams.items()}
        return Step(seen.final, streams, logits, self._norm, project)

    def _own_head(self, args: tuple[Any, ...], kwargs: dict[str, Any], seen: _Seen) -> Project:
        if self._decoder is None:
            # The outermost module that returns the final state: the less of the model runs again for candidates.
            for module in self._parts.around:
                state = last_state(seen.outputs.get(module))
                if state is not None and differs(state, seen.final) is None:
                    self._decoder = module
                    break
            else:
                raise UnsupportedModelError(
                    f"confident-decoding: no part of {type(self._model).__name__} returns what its final norm gives, "
                    f"so its output head cannot be applied to other layers. {PASS_OUTPUT_HEAD}"
                )
        return own_head(self._model, self._decoder, args, kwargs, seen.outputs[self._decoder])

    def _norm(self, states: Tensor) -> Tensor:
        normed: Tensor = self._parts.norm(states[:, None])
        return normed[:, 0]
