"""Callbacks on imports: after the module has run, once, and nothing else is touched."""

import importlib
import sys

import pytest

from confident_decoding.plugin.import_hooks import PostImportHooks


@pytest.fixture
def hooks():
    made = PostImportHooks()
    yield made
    if made in sys.meta_path:
        sys.meta_path.remove(made)


@pytest.fixture
def module_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        return name

    return write


def test_callback_runs_after_the_module_has_run(hooks, module_file):
    name, seen = module_file("cd_probe_a", "value = 1\n"), []
    hooks.on_import(name, lambda module: seen.append(module.value))
    assert name not in sys.modules, "nothing is imported for the hook's sake"
    importlib.import_module(name)
    importlib.import_module(name)
    assert seen == [1]


def test_callback_runs_at_once_for_a_loaded_module(hooks):
    seen = []
    hooks.on_import("json", lambda module: seen.append(module.__name__))
    assert seen == ["json"]


def test_other_imports_are_untouched(hooks, module_file):
    name = module_file("cd_probe_c", "x = 1\n")
    hooks.on_import("cd_never_imported", lambda module: pytest.fail("wrong module"))
    assert importlib.import_module(name).x == 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("cd_does_not_exist")


def test_a_failing_import_stays_the_same_failure(hooks, module_file):
    name = module_file("cd_probe_d", "raise ValueError('own')\n")
    hooks.on_import(name, lambda module: pytest.fail("it was not imported"))
    with pytest.raises(ValueError, match="own"):
        importlib.import_module(name)
