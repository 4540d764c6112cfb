"""docs/compatibility.md and tests/README.md: up to date, complete, and every test that they name exists."""

import ast
import inspect
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarks import gpu_adapters, gpu_check, gpu_drafters, gpu_lifecycle, gpu_ranks
from confident_decoding.plugin import compat
from tools import compatibility_doc

ROWS = [row for group in compatibility_doc.rows().values() for row in group]
README = (ROOT / "tests/README.md").read_text()
CASES = dict(re.findall(r"^\| (F?\d+) \|.*\| (.*) \|$", README, re.MULTILINE))
NAMED = {reference for row in ROWS for reference in row["shown"]} | set(re.findall(r"`([\w/.]+\.py::\w+)`", README))


def of(folder):
    return {reference for reference in NAMED if reference.startswith(folder)}


@pytest.fixture(scope="module")
def collected():
    """What pytest finds in the files that are named, without parameters."""
    files = sorted({reference.split("::")[0] for reference in of("tests/")})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split("[")[0] for line in done.stdout.splitlines() if "::" in line}


def test_the_page_is_up_to_date():
    assert compatibility_doc.PAGE.read_text() == compatibility_doc.page()


def test_every_test_that_is_named_exists(collected):
    assert len(of("tests/")) > 60
    assert of("tests/") - collected == set()


def test_every_check_on_gpus_that_is_named_exists():
    checks = {
        f"benchmarks/gpu_check.py::{name}"
        for module in (gpu_check, gpu_adapters, gpu_drafters, gpu_lifecycle, gpu_ranks)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and list(inspect.signature(function).parameters) in (["model"], ["_"])
    }
    assert of("benchmarks/") - checks == set()
    assert checks - {row for row in NAMED if row.startswith("benchmarks/")} <= {"benchmarks/gpu_check.py::sync"}
    usage = gpu_check.__doc__
    assert all(f"gpu_check {reference.split('::')[1]} " in usage for reference in checks)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["feature"][:40])
def test_a_verdict_has_what_shows_it(row):
    assert set(row) <= {"feature", "verdict", "since", "shown", "says", "note"}
    tests = [reference for reference in row["shown"] if reference.startswith("tests/")]
    checks = [reference for reference in row["shown"] if reference.startswith("benchmarks/")]
    assert {"works": tests, "refused": tests, "GPU only": checks}.get(row["verdict"], row.get("note"))
    assert row["verdict"] in compatibility_doc.VERDICTS
    assert "says" not in row or row["verdict"] == "refused"


def test_every_check_has_passed_as_a_whole_or_the_page_says_what_is_open():
    results = compatibility_doc.checks()
    named = {reference.split("::")[1] for reference in of("benchmarks/")}
    assert set(results) <= named | {"sync"}
    whole = {name for name, lines in results.items() if compatibility_doc.passed_whole(lines)}
    assert whole >= {"asynchronous", "cache", "exact", "invariant", "requests", "sync", "update"}
    assert set(compatibility_doc.OPEN) == named - whole


def test_a_check_that_was_cut_short_has_not_passed():
    def lines(check, *ends):
        kept = [{"check": check, "name": "a result", "passed": True, "detail": ""}]
        return kept + [{"check": check, "name": gpu_check.RAN, "passed": True, "detail": end} for end in ends]

    passed = compatibility_doc.passed_whole
    assert passed(lines("exact", "runners 1", "runners 0"))
    assert passed(lines("exact", "runners 1,0"))
    assert not passed(lines("exact", "runners 1"))
    assert passed(lines("cache", ""))
    assert not passed(lines("cache"))
    assert not passed([{**line, "passed": False} for line in lines("cache", "")])


def refusals():
    """The text of each message in plugin/compat.py that refuses something, as it is written there."""
    source = inspect.getsource(compat)
    tree = ast.parse(source)
    yields = [node.value for node in ast.walk(tree) if isinstance(node, ast.Yield)]
    # `version_problem` returns (refusal, warning).
    pairs = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    found = yields + [pair.elts[0] for pair in pairs if not isinstance(pair.elts[0], ast.Constant)]
    return ["".join(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant)) for node in found]


def test_every_refusal_has_a_row():
    messages = refusals()
    assert len(messages) >= 5
    said = [row["says"] for row in ROWS if "says" in row]
    assert [message for message in messages if not any(words in message for words in said)] == []
    sources = "".join(path.read_text() for path in (ROOT / "src/confident_decoding").rglob("*.py"))
    joined = re.sub(r'"\s*f?"', "", sources)  # of strings that go on on the next line
    assert [words for words in said if words not in joined] == [], "nothing says so"


def test_every_speculative_method_has_a_row():
    text = " ".join(row["feature"] for row in compatibility_doc.rows()["Speculative decoding"])
    assert [method for method in compat.SPECULATION if f"`{method}`" not in text] == []


def test_no_speculative_method_has_two_verdicts():
    names = [
        name
        for row in compatibility_doc.rows()["Speculative decoding"]
        for name in re.findall("`(.*?)`", row["feature"])
    ]
    assert len(names) == len(set(names))


def test_every_case_has_a_test():
    assert list(CASES) == [*map(str, range(1, 26)), *(f"F{number}" for number in range(1, 8))]
    assert all(re.search(r"`[\w/.]+\.py::\w+`", shown) for shown in CASES.values())
