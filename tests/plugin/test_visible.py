"""Why vLLM does not have the plugin, each reason alone. (In processes of their own: tests/cli/test_probe.py.)"""

import dataclasses
from importlib.metadata import EntryPoint

import pytest

from confident_decoding.plugin import contracts, visible


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("VLLM_PLUGINS", "CONFIDENT_DECODING_DISABLE"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_loaded():
    assert visible.why_not_loaded() is None


def test_not_installed(monkeypatch):
    monkeypatch.setattr(visible, "entry_points", lambda group: [EntryPoint("other", "other.module:register", group)])
    found = visible.why_not_loaded()
    assert "no entry point in vllm.general_plugins" in found.what
    assert "pip install" in found.remedy


def test_not_importable(monkeypatch):
    broken = EntryPoint("confident_decoding", "confident_decoding.no_such_module:register", visible.GROUP)
    monkeypatch.setattr(visible, "entry_points", lambda group: [broken])
    assert "no_such_module" in visible.why_not_loaded().what


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": ("something_else",)}, "something_else"),
        ({"name": "BaseModelLoader.gone"}, "gone does not exist"),
        ({"module": "vllm.gone"}, "No module named 'vllm.gone'"),
    ],
)
def test_a_vllm_that_has_changed(monkeypatch, change, says):
    monkeypatch.setattr(visible, "_HOOKED", (dataclasses.replace(contracts.LOADER, **change),))
    found = visible.why_not_loaded()
    assert found.what.startswith("vLLM has changed: ")
    assert says in found.what
    assert "Report it" in found.remedy


@pytest.mark.parametrize("side", [visible.loader, visible.front_end])
def test_hooks_that_are_not_in_place(monkeypatch, side):
    monkeypatch.setattr(side, "hooked", lambda: False)
    assert "hooks are not in place" in visible.why_not_loaded().what
