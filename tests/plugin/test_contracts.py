"""The hooks' assumptions about vLLM: the part for the installed version, and that a breach is seen."""

import dataclasses
import importlib

import pytest

from confident_decoding.plugin import contracts, missing_capture
from confident_decoding.plugin.contracts import CONTRACTS, Contract
from tools import contracts as tool


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: f"{c.module.removeprefix('vllm.')}.{c.name}")
def test_installed_vllm_keeps(contract):
    assert list(tool.problems(contract, tool.installed())) == []


@pytest.mark.parametrize("contract", [contracts.LOADER, contracts.FRONT_END, contracts.HEAD], ids=lambda c: c.name)
def test_the_runtime_check_agrees(contract):
    module = importlib.import_module(contract.module)
    assert contracts.check_live(contract, module) is None
    broken = dataclasses.replace(contract, parameters=("something_else",))
    assert "something_else" in contracts.check_live(broken, module)
    assert "does not exist" in contracts.check_live(dataclasses.replace(contract, name="Gone.method"), module)


@pytest.mark.parametrize(
    ("contract", "says"),
    [
        (Contract("vllm.no_such_module", "f"), "does not exist"),
        (dataclasses.replace(contracts.LOADER, name="BaseModelLoader.no_such_method"), "does not exist"),
        (dataclasses.replace(contracts.HEAD, parameters=("hidden_states",)), "expected ['hidden_states'] first"),
        (Contract(contracts.HEAD.module, "LogitsProcessor", attributes=("no_such_attribute",)), "does not set"),
        (dataclasses.replace(contracts.HEAD, mentions=("no_such_name",)), "does not use"),
    ],
)
def test_a_breach_is_named(contract, says):
    (problem,) = tool.problems(contract, tool.installed())
    assert says in problem


def test_installed_forwards_are_known():
    assert list(tool.unknown_forwards(tool.installed())) == []


def test_a_changed_forward_is_seen():
    known = "def forward(self, x):\n    # why\n    return self.norm(x,)\n"
    assert missing_capture.hash_tokens(known) == missing_capture.hash_tokens(
        "def forward(self, x):\n\n    return self.norm(\n        x\n    )\n"
    )
    assert missing_capture.hash_tokens(known) != missing_capture.hash_tokens(known.replace("norm(x", "norm(2 * x"))


def test_all_supported_releases_are_checked():
    assert tool.releases() == [f"0.{minor}.0" for minor in range(26, 34)]
