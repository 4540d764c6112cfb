"""``make contracts``: what the hooks rely on, checked in the source of every supported vLLM release.

Python files come from the wheels (downloaded once, about 3 GB in passing; a few MB are kept in the
cache directory). Nothing of vLLM is imported, so one machine can check all releases.

    python -m tools.contracts                 every release
    python -m tools.contracts --installed     the vLLM of this environment, no download
"""

import argparse
import ast
import importlib.util
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

from confident_decoding.plugin.compat import SUPPORTED
from confident_decoding.plugin.contracts import CONTRACTS, Contract
from confident_decoding.plugin.missing_capture import KNOWN_FORWARDS, WITHOUT_CAPTURE, hash_tokens
from demo.checkpoint import cache_dir

PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (35, 34, 31, 28, 17)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
FILES = sorted({name.replace(".", "/") + ".py" for name in [*(c.module for c in CONTRACTS), *WITHOUT_CAPTURE]})


def releases() -> list[str]:
    """The supported releases, oldest first."""
    (major, low), (_, high) = SUPPORTED
    return [f"{major}.{minor}.0" for minor in range(low, high + 1)]


def fetch(version: str) -> Path:
    """Folder with the contract's files of one release, from its wheel."""
    folder = cache_dir() / "vllm-sources" / version
    if all((folder / name).is_file() for name in FILES):
        return folder
    print(f"{version}: downloading the wheel ...", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                "--python-version",
                "3.12",
                "--implementation",
                "cp",
                *(flag for p in PLATFORMS for flag in ("--platform", p)),
                "-d",
                temporary,
                f"vllm=={version}",
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            present = set(wheel.namelist())
            for name in FILES:
                if name in present:
                    wheel.extract(name, folder)
    return folder


def installed() -> Path:
    """Folder that holds the ``vllm`` package of this environment."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("vLLM is not installed here.")
    return Path(spec.submodule_search_locations[0]).parent


def problems(contract: Contract, root: Path) -> Iterator[str]:
    """What the source under ``root`` does not give that ``contract`` wants."""
    path = root / (contract.module.replace(".", "/") + ".py")
    if not path.is_file():
        yield f"{contract.module} does not exist"
        return
    where = f"{contract.module}.{contract.name}"
    node: ast.AST | None = ast.parse(path.read_text())
    for part in contract.name.split("."):
        node = _child(node, part)
        if node is None:
            yield f"{where} does not exist"
            return
    if contract.parameters is not None:
        assert isinstance(node, ast.FunctionDef)
        found = [a.arg for a in [*node.args.posonlyargs, *node.args.args] if a.arg != "self"]
        if found[: len(contract.parameters)] != list(contract.parameters):
            yield f"{where} takes {found}, expected {list(contract.parameters)} first"
    if contract.attributes:
        missing = set(contract.attributes) - set(_attributes(node))
        if missing:
            yield f"{where} does not set {sorted(missing)}"
    if contract.mentions:
        used = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} | {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name)
        }
        missing = set(contract.mentions) - used
        if missing:
            yield f"{where} does not use {sorted(missing)}"


def unknown_forwards(root: Path) -> Iterator[str]:
    """Replaced forwards whose text is not one that we know."""
    for module, name in WITHOUT_CAPTURE.items():
        source = (root / (module.replace(".", "/") + ".py")).read_text()
        forward = _child(_child(ast.parse(source), name), "forward")
        assert isinstance(forward, ast.FunctionDef), f"{module}.{name}.forward"
        lines = source.splitlines()[forward.lineno - 1 : forward.end_lineno]
        found = hash_tokens(textwrap.dedent("\n".join(lines)) + "\n")
        if found not in KNOWN_FORWARDS[name]:
            yield f"{module}.{name}.forward has the unknown source hash {found}"


def _child(node: ast.AST | None, name: str) -> ast.AST | None:
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            return child
    return None


def _attributes(node: ast.AST) -> Iterator[str]:
    """Names a class gives its instances: assigned on self, annotated or defined in its body."""
    for n in ast.walk(node):
        if (
            isinstance(n, ast.Attribute)
            and isinstance(n.ctx, ast.Store)
            and isinstance(n.value, ast.Name)
            and n.value.id == "self"
        ):
            yield n.attr
        elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
            yield n.target.id
        elif isinstance(n, ast.FunctionDef):
            yield n.name


def check(name: str, root: Path) -> bool:
    """Print the verdict of one source tree."""
    found = [problem for contract in CONTRACTS for problem in problems(contract, root)] + list(unknown_forwards(root))
    print(
        f"{name}: {len(CONTRACTS)} contracts and {len(WITHOUT_CAPTURE)} forwards, "
        + ("all kept" if not found else f"{len(found)} broken"),
        flush=True,
    )
    for problem in found:
        print("   ", problem)
    return not found


def main() -> int:
    """0 if every contract is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", action="store_true", help="only the vLLM of this environment")
    args = parser.parse_args()
    if args.installed:
        return 0 if check("installed", installed()) else 1
    verdicts = [check(version, fetch(version)) for version in releases()]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
