"""Import hooks, entry point, loader wrapping and capture detection, without an engine."""

import importlib
import logging
import subprocess
import sys
import textwrap
import types

import pytest
import torch
from vllm.config import ParallelConfig

from confident_decoding.config import ConfigError
from confident_decoding.plugin import compat, install, rows, runner
from confident_decoding.plugin.import_hooks import PostImportHooks

VLLM_MODULES = ("vllm.model_executor.model_loader.base_loader", "vllm.v1.engine.input_processor")


def python(code, **kwargs):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, **kwargs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


def test_the_core_imports_neither_vllm_nor_transformers():
    out = python("""
        import sys
        from confident_decoding import config, entropy, scan, selection, stats
        print([m for m in ("vllm", "transformers") if m in sys.modules])
    """)
    assert out.strip() == "[]"


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
    import os

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


@pytest.mark.parametrize(
    ("version", "refused", "warned"),
    [
        ("0.25.1", True, False),
        ("0.19.1", True, False),
        ("0.26.0", False, False),
        ("0.32.0", False, False),
        ("0.32.0+cpu", False, False),
        ("0.33.1", False, False),
        ("0.34.0", False, True),
        ("0.34.0rc1", False, True),
        ("1.0.0", False, True),
        ("dev", False, True),
        ("0.0.0", False, True),
        ("0.1.dev1+gabc123", False, True),
    ],
)
def test_versions(version, refused, warned):
    refusal, warning = compat.version_problem(version)
    assert (refusal is not None, warning is not None) == (refused, warned)
    assert version in (refusal or warning or version)
    if refused:
        assert "0.26 to 0.33" in refusal


def config_with(**changes):
    ns = types.SimpleNamespace
    base = {
        "speculative_config": None,
        "lora_config": None,
        "cache_config": ns(kv_sharing_fast_prefill=False),
        "compilation_config": ns(pass_config=ns(enable_sp=False)),
        "parallel_config": ns(prefill_context_parallel_size=1),
    }
    return ns(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculative_config": types.SimpleNamespace(method=m)}, m)
        for m in ("medusa", "dflash", "dspark", "mlp_speculator", "extract_hidden_states", "custom_class")
    ]
    + [
        ({"cache_config": types.SimpleNamespace(kv_sharing_fast_prefill=True)}, "--kv-sharing-fast-prefill"),
        ({"compilation_config": types.SimpleNamespace(pass_config=types.SimpleNamespace(enable_sp=True))}, "enable_sp"),
        ({"parallel_config": types.SimpleNamespace(prefill_context_parallel_size=2)}, "prefill context"),
        ({"parallel_config": ParallelConfig(ubatch_size=2)}, "--enable-dbo"),
        ({"parallel_config": ParallelConfig(enable_dbo=True)}, "--enable-dbo"),
    ],
)
def test_each_unsupported_combination_is_named(changes, named):
    (problem,) = compat.unsupported_combinations(config_with(**changes))
    assert named in problem


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3", "mtp"])
def test_speculation_whose_drafter_gets_what_it_reads_is_allowed(method):
    assert (
        list(compat.unsupported_combinations(config_with(speculative_config=types.SimpleNamespace(method=method))))
        == []
    )


def test_rows_are_told_by_the_callers_name():
    def caller_of(kind, serving, file="somewhere.py"):
        namespace = {"classify": rows.classify, "sys": sys}
        exec(compile(f"def {kind}(serving): return classify(sys._getframe(0), serving)", file, "exec"), namespace)
        return namespace[kind]

    assert caller_of("execute_model", True)(True) == "sampled"
    assert caller_of("sample", True)(True) == "sampled"
    assert caller_of("_dummy_sampler_run", True)(True) == "warmup"
    assert caller_of("_get_prompt_logprobs_dict", True)(True) == "prompt"
    assert caller_of("chunks", True, "vllm/v1/worker/gpu/sample/prompt_logprob.py")(True) == "prompt"

    # vLLM's warm-up runs whole steps through execute_model: told by a caller further up, until serving.
    def compile_or_warm_up_model(serving):
        return caller_of("execute_model", serving)(serving)

    assert compile_or_warm_up_model(False) == "warmup"
    assert compile_or_warm_up_model(True) == "sampled"


class FakeLoads:
    """A loader's ``load_model`` and the configurations that it is called with."""

    def __init__(self, additional_config, runner_type="generate"):
        self.model_config = types.SimpleNamespace(runner_type=runner_type, get_total_num_hidden_layers=lambda: 30)
        self.vllm_config = config_with(additional_config=additional_config, model_config=self.model_config)
        self.calls = []

    def load_model(self, vllm_config, model_config, prefix=""):
        self.calls.append((vllm_config, model_config, prefix))
        return "the model"


@pytest.mark.parametrize(
    "case",
    ["off", "no keys", "draft", "pooling"],
)
def test_other_loads_pass_through_untouched(case, monkeypatch):
    """Switch off, a drafter's own model configuration, a pooling engine: nothing is installed or changed."""
    from confident_decoding.plugin import loader

    monkeypatch.setattr(loader, "install", lambda *args: pytest.fail("installed"))
    on = {"enable_multi_layer_entropy_selection": case in ("draft", "pooling")} if case != "no keys" else {}
    fake = FakeLoads(on, "pooling" if case == "pooling" else "generate")
    model_config = types.SimpleNamespace(runner_type="draft") if case == "draft" else fake.model_config
    result = loader._load(fake.load_model, (fake.vllm_config, model_config), {"prefix": "x"})
    assert result == "the model"
    assert fake.calls == [(fake.vllm_config, model_config, "x")]
    assert fake.vllm_config.additional_config is on


def test_a_loader_that_calls_super_installs_once(monkeypatch):
    from confident_decoding.plugin import loader

    installed = []
    monkeypatch.setattr(loader, "install", lambda *args: installed.append(args[0]))
    given = {"enable_multi_layer_entropy_selection": True, "other_plugin": 1}
    fake = FakeLoads(given)
    fake.vllm_config.parallel_config.pipeline_parallel_size = 1

    def outer(vllm_config, model_config):
        return loader._load(fake.load_model, (), {"vllm_config": vllm_config, "model_config": model_config})

    loader._load(outer, (fake.vllm_config, fake.model_config), {})
    assert installed == ["the model"]
    marked = fake.vllm_config.additional_config
    assert marked["_confident_decoding"]["depths"] == list(range(10))
    assert {k: marked[k] for k in given} == given
    assert "_confident_decoding" not in given, "the user's dictionary is not changed"


def test_the_fingerprint_tells_captured_layers_apart():
    from confident_decoding.config import ConfidentDecodingConfig
    from confident_decoding.plugin.fingerprint import KEY, mark_compile_cache

    marks = []
    for k in (4, 10):
        config = types.SimpleNamespace(additional_config={})
        mark_compile_cache(config, ConfidentDecodingConfig(trough_max_backtrack_layers=k).resolve(30))
        marks.append(config.additional_config[KEY])
    assert marks[0]["depths"] != marks[1]["depths"]
    assert marks[0]["source"] == marks[1]["source"]
    assert len(marks[0]["source"]) == 16


RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")


def fake_runner(monkeypatch, first_parameter):
    """A process with one model runner, of the first kind, whose ``execute_model`` takes this parameter."""
    space = {}
    exec(f"def execute_model(self, {first_parameter}): return 'ran'", space)
    module = types.ModuleType(RUNNERS[0])
    module.GPUModelRunner = type("GPUModelRunner", (), {"execute_model": space["execute_model"], "model": None})
    monkeypatch.setitem(sys.modules, RUNNERS[0], module)
    monkeypatch.delitem(sys.modules, RUNNERS[1], raising=False)
    return module.GPUModelRunner


def test_a_known_runner_is_wrapped_once_and_runs_models_that_are_not_ours(monkeypatch):
    cls = fake_runner(monkeypatch, "scheduler_output")
    assert runner.wrap_runners() is None
    wrapped = cls.execute_model
    assert runner.wrap_runners() is None
    assert cls.execute_model is wrapped
    assert cls().execute_model(object()) == "ran"


def test_an_unknown_runner_is_left_alone_and_named(monkeypatch):
    cls = fake_runner(monkeypatch, "work")
    original = cls.execute_model
    assert "GPUModelRunner.execute_model" in runner.wrap_runners()
    assert cls.execute_model is original
    for name in RUNNERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert "none of vLLM's own" in runner.wrap_runners()


def test_drafters_that_would_get_packed_rows_are_refused(monkeypatch, caplog):
    monkeypatch.setattr(runner, "wrap_runners", lambda: "it was renamed")
    model = torch.nn.Linear(1, 1)
    for method in ("eagle", "eagle3", "mtp"):
        config = types.SimpleNamespace(speculative_config=types.SimpleNamespace(method=method))
        with pytest.raises(ConfigError, match="it was renamed"):
            install._hook_runners(model, config)
    with caplog.at_level(logging.ERROR, "vllm.confident_decoding"):
        install._hook_runners(model, types.SimpleNamespace(speculative_config=None))
    assert "it was renamed" in caplog.text


@pytest.mark.parametrize(
    ("metrics_on", "stages", "offered"), [(True, 1, 1), (False, 1, 0), (True, 2, 1), (True, 16, 0)]
)
def test_only_with_metrics_on_does_the_front_end_offer_a_folder(metrics_on, stages, offered, monkeypatch):
    """Nor where pipeline stages keep Confident Decoding off: of 16 stages of 30 layers, the last has one or two."""
    from confident_decoding.config import ConfidentDecodingConfig
    from confident_decoding.plugin import front_end, metrics

    config = ConfidentDecodingConfig(trough_metrics=metrics_on)
    monkeypatch.setattr(front_end, "validate", lambda _: (config, config.resolve(30)))
    monkeypatch.setattr(runner, "problem", lambda: None)
    offers = []
    monkeypatch.setattr(metrics, "offer", offers.append)
    space = {}
    exec(
        "class InputProcessor:\n"
        "    def __init__(self, vllm_config, renderer): self.built = vllm_config\n"
        "    def process_inputs(self, request_id, prompt, params): ...",
        space,
    )
    module = types.SimpleNamespace(InputProcessor=space["InputProcessor"])
    front_end.wrap_input_processor(module)
    vllm_config = config_with(parallel_config=types.SimpleNamespace(pipeline_parallel_size=stages))
    assert module.InputProcessor(vllm_config, None).built is vllm_config
    assert offers == [vllm_config] * offered
