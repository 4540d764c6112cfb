"""Captured states that are the candidates', a drafter's, or both: who gets which, without an engine."""

import types

import pytest
import torch

from confident_decoding.config import ConfidentDecodingConfig, ConfigError
from confident_decoding.plugin.capture import CapturedStates, indices_of
from confident_decoding.plugin.drafting import unpack_for_drafter
from confident_decoding.plugin.pack import pack, swap_class

H = 2


def states(*indices):
    """States that say which they are, as a model returns them."""
    return [torch.full((3, H), float(index)) for index in indices]


def numbers(tensors):
    return [int(tensor[0, 0]) for tensor in tensors]


@pytest.mark.parametrize("asked", [(0, 4, 6), (6, 4, 0, 4)])
def test_each_gets_its_own_states_in_the_order_of_the_layers(asked):
    captured = CapturedStates(indices_of(ConfidentDecodingConfig(trough_max_backtrack_layers=4).resolve(6)))
    captured.drafters = tuple(sorted(set(asked)))
    assert captured.indices == (0, 3, 4, 5, 6)
    packed, drafters = pack((torch.full((3, H), 9.0), states(0, 3, 4, 5, 6)), captured)
    assert packed[0].tolist() == [9, 9, 5, 5, 4, 4, 3, 3], "the final state, then from the deepest on"
    assert numbers(drafters) == [0, 4, 6]


def test_without_a_drafter_there_are_packed_rows_alone():
    packed = pack((torch.full((3, H), 9.0), states(4, 5)), CapturedStates((4, 5)))
    assert packed[0].tolist() == [9, 9, 5, 5, 4, 4]


def test_one_candidate_needs_no_state_and_a_drafter_gets_all():
    captured, final = CapturedStates(()), torch.full((3, H), 9.0)
    assert pack(final, captured) is final
    captured.drafters = (2, 4)
    packed, drafters = pack((final, states(2, 4)), captured)
    assert packed is final
    assert numbers(drafters) == [2, 4]


@pytest.mark.parametrize("output", [torch.zeros(3, H), (torch.zeros(3, H), states(4))])
def test_missing_states_stop_the_engine_with_a_remedy(output):
    with pytest.raises(RuntimeError, match=r"expected 2 captured states.*VLLM_DISABLE_COMPILE_CACHE=1"):
        pack(output, CapturedStates((4, 5)))


class Model(torch.nn.Module):
    def set_aux_hidden_state_layers(self, layers):
        self.layers = layers


def test_a_drafter_that_asks_after_loading_gets_a_union_and_a_proof():
    model, captured, proven = Model(), CapturedStates((4, 5)), []
    swap_class(model, captured, lambda: proven.append(captured.indices), None, None)
    model.set_aux_hidden_state_layers((0, 5, 2))
    assert model.layers == (0, 2, 4, 5)
    assert proven == [(0, 2, 4, 5)]


def test_a_model_that_does_not_return_a_drafters_states_is_refused():
    def refuse():
        raise ConfigError("not returned")

    model = Model()
    swap_class(model, CapturedStates((4, 5)), refuse, None, None)
    with pytest.raises(ConfigError, match="not returned"):
        model.set_aux_hidden_state_layers((7,))


def test_a_model_that_cannot_give_states_to_a_drafter_still_says_so():
    model = torch.nn.Linear(1, 1)
    swap_class(model, CapturedStates(()), None, None, None)
    assert not hasattr(model, "set_aux_hidden_state_layers")


@pytest.mark.parametrize("reads_captured_states", [False, True])
def test_only_final_states_are_unpacked(reads_captured_states):
    """What the first runner gives a drafter of captured states may be as wide as a packed row."""
    seen = []
    drafter = types.SimpleNamespace(propose=lambda **given: seen.append(given["target_hidden_states"].shape[1]))
    runner = types.SimpleNamespace(drafter=drafter, use_aux_hidden_state_outputs=reads_captured_states)
    unpack_for_drafter(runner, 3 * H, H)
    drafter.propose(target_hidden_states=torch.zeros(5, 3 * H))
    assert seen == [3 * H if reads_captured_states else H]
    table = torch.zeros(5, 3 * H, dtype=torch.int32)  # of token ids, by accident as wide
    drafter.propose(target_hidden_states=table)
    assert seen[1] == 3 * H
