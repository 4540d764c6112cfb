"""Nothing in the documentation may rot: links, code, commands, configurations."""

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache

import pytest
import typer
from docs.blocks import PAGES, ROOT, blocks, commands

from confident_decoding.cli.app import app
from confident_decoding.config import ConfidentDecodingConfig

LANGUAGES = {"bash", "python", "json", "text", "yaml", "promql"}
"""``bash`` is for commands, ``text`` for what a program prints and for what is not code."""


def test_the_site_builds_strictly(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = {path.name for path in (tmp_path / "site").rglob("index.html") for path in [path.parent]}
    assert {"configuration", "performance", "compatibility", "analysis", "evaluation", "cli"} <= made
    html = (tmp_path / "site/index.html").read_text()
    # Opening a page must not ask other servers for anything.
    assert not re.findall(r'(?:src|href)="https?://(?!arxiv\.org|squidfunk)[^"]*\.(?:js|css|woff2?)"', html)


def test_links_outside_the_site_lead_somewhere():
    """The site checks its own; README and the like are not part of it."""
    for path in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("block", list(blocks()), ids=str)
def test_a_block_is_what_it_says(block):
    assert block.language in LANGUAGES, f"{block}: which language is it?"
    if block.language == "json":
        json.loads(block.text)
    if block.language == "python":
        compile(block.text, str(block), "exec")


def test_python_is_run_by_a_test():
    for block in blocks():
        if block.language == "python":
            assert block.mark, f"{block}: say which test runs it: <!-- run by tests/... -->"
            assert (ROOT / block.mark).is_file(), f"{block}: {block.mark}"
            assert f'"{block.page}"' in (ROOT / block.mark).read_text(), f"{block}: {block.mark} reads other pages"


def test_every_configuration_shown_is_valid():
    shown = [found for path in PAGES for found in re.findall(r"--additional-config '([^']*)'", path.read_text())]
    assert len(shown) > 5
    for text in shown:
        if text.startswith("{"):
            ConfidentDecodingConfig.from_additional_config(json.loads(text)).resolve(36)


def test_the_table_of_keys_is_the_configuration():
    """It stands in README and, as the same text, on the page of the configuration."""
    readme = (ROOT / "README.md").read_text()
    table = readme.split("[start:keys] -->\n")[1].split("<!-- --8<-- [end:keys]")[0]
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:4]] for line in table.strip().splitlines()[2:]]
    written = {bool: "bool", str: "str", int: "int", float: "float", int | None: "int", float | None: "float"}

    def default(value):
        return "unset" if value is None else json.dumps(value)

    fields = ConfidentDecodingConfig.model_fields
    assert rows == [[key, written[field.annotation], default(field.default)] for key, field in fields.items()]
    assert '--8<-- "README.md:keys"' in (ROOT / "docs/configuration.md").read_text()


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def help_of(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@cache
def vllm_options():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return set(make_arg_parser(FlexibleArgumentParser())._option_string_actions)


def check_python(block, words):
    module = words[words.index("-m") + 1]
    if module == "pytest":
        for word in words[words.index(module) + 1 :]:
            assert word.startswith("-") or (ROOT / word).exists(), f"{block}: {word}"
        return
    if module.startswith(("benchmarks.", "tools.", "models.")):
        assert importlib.util.find_spec(module), f"{block}: {module}"
    if module.startswith("benchmarks."):
        for word in words:
            assert not word.startswith("--") or word in help_of(module), f"{block}: {word}"


def check_ours(block, words):
    command = typer.main.get_command(app)
    name, *arguments = words[1:]
    assert name in command.commands, f"{block}: {name}"
    command.commands[name].make_context(name, list(arguments), resilient_parsing=True)


@pytest.mark.parametrize(("block", "words"), list(commands()), ids=lambda value: str(value)[:60])
def test_every_command_exists_and_takes_what_it_is_given(block, words):
    program = words[0].rsplit("/", 1)[-1]
    match program:
        case "make":
            assert {w for w in words[1:] if "=" not in w} <= targets(), block
        case "vllm":
            assert words[1] == "serve"
            assert {w for w in words if w.startswith("--")} <= vllm_options(), block
        case "confident-decoding":
            check_ours(block, words)
        case "python" | "python3" if "-m" in words:
            check_python(block, words)
        case "python" | "python3":
            assert words[1] == "-c" or (ROOT / words[1]).exists(), block
        case "pip" | "pre-commit" | "curl" | "docker" | "cd" | "export":
            pass
        case _:
            pytest.fail(f"{block}: what is {program}?")
