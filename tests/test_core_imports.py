"""The core knows no framework: what it imports, by its source and in a process of its own."""

import ast
import subprocess
import sys
from pathlib import Path

import confident_decoding

PACKAGE = Path(confident_decoding.__file__).parent
CORE = sorted(path.stem for path in PACKAGE.glob("[!_]*.py"))


def imported(path):
    """First parts of the names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        yield from (name.split(".")[0] for name in names)


def test_the_core_needs_torch_and_pydantic_alone():
    found = {name for module in CORE for name in imported(PACKAGE / f"{module}.py")}
    assert found - set(sys.stdlib_module_names) == {"confident_decoding", "pydantic", "torch"}
    found = {name for path in (PACKAGE / "kernels").glob("*.py") for name in imported(path)}
    assert found - set(sys.stdlib_module_names) == {"confident_decoding", "torch", "triton"}


def test_the_core_loads_neither_vllm_nor_transformers():
    code = f"import sys; from confident_decoding import {', '.join(CORE)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"vllm", "transformers", "triton"}.isdisjoint(done.stdout.split())
    assert "confident_decoding.scan" in done.stdout.split()
