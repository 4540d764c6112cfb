"""The entry point that vLLM calls: cheap, never raising, in every process, and what it hooks or leaves alone."""

import os
import subprocess
import sys
import textwrap

import pytest


def python(code, **kwargs):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, **kwargs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_registering_is_cheap_and_imports_nothing_heavy():
    out = python("""
        import sys, time
        start = time.perf_counter()
        from confident_decoding.plugin.entrypoint import register
        register(); register()
        took = time.perf_counter() - start
        heavy = [m for m in ("torch", "vllm", "pydantic", "transformers", "numpy") if m in sys.modules]
        from confident_decoding.plugin import import_hooks
        finders = [f for f in sys.meta_path if isinstance(f, import_hooks.PostImportHooks)]
        print(took, heavy, len(finders))
    """)
    seconds, rest = out.split(" ", 1)
    assert rest.strip() == "[] 1"
    print(f"register: {1000 * float(seconds):.1f} ms")


@pytest.mark.parametrize(("value", "finders"), [("1", 0), ("true", 0), ("0", 1), ("", 1), ("no", 1)])
def test_the_kill_switch_places_no_hook(value, finders):
    out = python(f"""
        import os, sys
        os.environ["CONFIDENT_DECODING_DISABLE"] = {value!r}
        from confident_decoding.plugin.entrypoint import register
        from confident_decoding.plugin import import_hooks
        register(); register()
        print(sum(isinstance(f, import_hooks.PostImportHooks) for f in sys.meta_path))
    """)
    assert out.strip() == str(finders)


def test_registering_never_raises():
    python("""
        import confident_decoding.plugin.entrypoint as e
        class Broken:
            def on_import(self, *args): raise RuntimeError("broken")
        e.PostImportHooks = Broken
        e.register()
    """)


def test_vllm_finds_the_entry_point_in_a_child_process():
    out = python("""
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        import confident_decoding.plugin.entrypoint as e
        import sys
        print(e._hooks is not None, "vllm.model_executor.model_loader.base_loader" in sys.modules)
    """)
    assert out.strip().splitlines()[-1] == "True False"


def test_vllm_plugins_setting_leaves_us_out():
    out = python(
        """
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        import sys
        print("confident_decoding" in sys.modules)
    """,
        env={**os.environ, "VLLM_PLUGINS": "lora_filesystem_resolver"},
    )
    assert out.strip().splitlines()[-1] == "False"


def test_an_unexpected_shape_is_not_wrapped_and_stops_the_start_with_the_switch_on():
    """A vLLM whose loader takes other arguments: import works, off works, on is refused by name."""
    out = python("""
        import types
        from confident_decoding.plugin.entrypoint import register
        register()
        import vllm.model_executor.model_loader.base_loader as base
        assert base.BaseModelLoader.load_model._confident_decoding_wrapped
        def load_model(self, everything): ...
        base.BaseModelLoader.load_model = load_model
        from confident_decoding.plugin import entrypoint, front_end
        entrypoint._hook_loader(base)
        assert base.BaseModelLoader.load_model is load_model
        model = types.SimpleNamespace(runner_type="generate", get_total_num_hidden_layers=lambda: 30)
        config = types.SimpleNamespace(
            additional_config={}, model_config=model, speculative_config=None, lora_config=None, cache_config=None,
            compilation_config=None, parallel_config=types.SimpleNamespace(pipeline_parallel_size=1))
        assert front_end.validate(config) is None
        config.additional_config = {"enable_multi_layer_entropy_selection": True}
        try:
            front_end.validate(config)
        except ValueError as error:
            print(str(error).replace(chr(10), " "))
    """)
    last = out.strip().splitlines()[-1]
    assert "confident-decoding cannot hook this vLLM" in last
    assert "BaseModelLoader.load_model takes ['everything']" in last
    assert "supported vLLM 0.26 to 0.33" in last


def test_loaders_that_override_are_wrapped_too_present_and_future():
    python("""
        import sys
        from confident_decoding.plugin.entrypoint import register
        register()
        from vllm.model_executor.model_loader.base_loader import BaseModelLoader
        from vllm.model_executor.model_loader.tensorizer_loader import TensorizerLoader
        class Mine(BaseModelLoader):
            def load_model(self, vllm_config, model_config, prefix=""): ...
        class Inherits(BaseModelLoader): pass
        for cls in (BaseModelLoader, TensorizerLoader, Mine):
            assert vars(cls)["load_model"]._confident_decoding_wrapped, cls
        assert "load_model" not in vars(Inherits)
        from confident_decoding.plugin.loader import wrap_loaders
        once = BaseModelLoader.load_model
        wrap_loaders(sys.modules[BaseModelLoader.__module__])
        assert BaseModelLoader.load_model is once
    """)
