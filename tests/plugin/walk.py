"""Looks at everything that a class, a module or an engine of vLLM consists of; run as a process by test_untouched.py.

    python tests/plugin/walk.py OUT.json CHECKPOINT [--hide-plugin] STEP ...

At each step an engine is started with the switch ``off`` or ``on``, asked, looked at and shut down; then the classes
and modules are looked at. The walker knows nothing of the plugin.
"""

import argparse
import functools
import gc
import json
import sys
import types
from pathlib import Path

from hidden import hide_plugin

ON = {"enable_multi_layer_entropy_selection": True, "trough_metrics": True}
ENGINE = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
PLAIN = (bool, int, float, str, types.NoneType)
CODE = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property, type)


def described(value):
    """What a value is, alike in every process: where a function's code lies, of which type all else is."""
    if isinstance(value, (staticmethod, classmethod, functools.partial)):
        return f"{type(value).__name__} {described(getattr(value, '__func__', None) or value.func)}"
    if isinstance(value, types.MethodType):
        return f"method {described(value.__func__)}"
    if isinstance(value, property):
        return "property " + ", ".join(described(f) for f in (value.fget, value.fset, value.fdel))
    if isinstance(value, types.FunctionType):
        code = value.__code__
        wrapped = f" of {described(value.__wrapped__)}" if hasattr(value, "__wrapped__") else ""
        return f"function {value.__qualname__} at {code.co_filename}:{code.co_firstlineno}{wrapped}"
    if isinstance(value, type):
        registered = vars(sys.modules.get(value.__module__, types)).get(value.__qualname__)
        swapped = " (another one)" if isinstance(registered, type) and registered is not value else ""
        return f"class {value.__module__}.{value.__qualname__}{swapped}"
    if isinstance(value, tuple) and value and all(isinstance(item, type) for item in value):
        return " and ".join(map(described, value))
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def classes_and_modules():
    """``{module: {"Class.attribute": value}}`` of everything in the loaded modules of vLLM."""
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "vllm" and module}
    found, seen = {name: {} for name in loaded}, set()

    def of_class(cls):
        if cls in seen or cls.__module__ not in loaded:
            return
        seen.add(cls)
        of_module = found[cls.__module__]
        of_module[f"{cls.__qualname__}.__bases__"] = cls.__bases__
        for key, value in vars(cls).items():
            of_module[f"{cls.__qualname__}.{key}"] = value
            if isinstance(value, type):
                of_class(value)

    for name, module in loaded.items():
        for key, value in list(vars(module).items()):
            if isinstance(value, types.ModuleType) or key in ("__builtins__", "__warningregistry__"):
                continue
            found[name][key] = value
            if isinstance(value, type):
                of_class(value)
    return found


def instances(root):
    """``{"path.attribute": what}`` of all objects of vLLM that can be reached from ``root`` over attributes."""
    found, seen, waiting = {}, set(), [("llm", root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or path.count(".") > 12:
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(f"{path}[{key}]", item) for key, item in list(items)[:64] if _of_vllm(item)]
            continue
        found[path] = described(type(value))
        for key, item in getattr(value, "__dict__", {}).items():
            found[f"{path}.{key}"] = described(item)
            if _of_vllm(item) or isinstance(item, (list, tuple, dict)):
                waiting.append((f"{path}.{key}", item))
    return found


def _of_vllm(value):
    return type(value).__module__.split(".")[0] == "vllm" or hasattr(value, "_parameters")


def engine(model, step):
    """Start, ask, look, shut down."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model=model, additional_config=ON if step == "on" else {}, **ENGINE)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    out = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    seen = {"step": step, "tokens": list(out[0].outputs[0].token_ids), "instances": instances(llm)}
    del llm, out
    cleanup_dist_env_and_memory()
    gc.collect()
    return seen


def moved(before, after):
    """Functions, methods and classes that are not the same object any more."""
    return [
        f"{module}.{key}"
        for module, attributes in before.items()
        for key, value in attributes.items()
        if isinstance(value, CODE) and after[module].get(key) is not value
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("model")
    parser.add_argument("--hide-plugin", action="store_true")
    parser.add_argument("steps", nargs="+", choices=["off", "on"])
    args = parser.parse_args()
    if args.hide_plugin:
        hide_plugin()
    results, before = [], None
    for step in args.steps:
        result = engine(args.model, step)
        now = classes_and_modules()
        result["classes"] = {
            module: {
                key: repr(value) if isinstance(value, PLAIN) else described(value) for key, value in attributes.items()
            }
            for module, attributes in now.items()
        }
        result["moved"] = moved(before, now) if before is not None else []
        before = before or now
        results.append(result)
    args.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
