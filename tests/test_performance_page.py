"""docs/performance.md shows the committed results, and the command that they come from."""

import shlex

from docs.blocks import blocks

from tools import performance_doc
from tools.marked import result


def test_the_page_is_up_to_date():
    assert performance_doc.PAGE.read_text() == performance_doc.page()
    assert performance_doc.CHART.exists()


def test_the_command_is_the_one_that_the_results_come_from():
    lines = [line for block in blocks() for line in block.text.replace("\\\n", " ").splitlines()]
    (shown,) = [line for line in lines if line.startswith("python -m benchmarks.overhead --shape ")]
    ran, given = result("overhead-h200-tp1")["arguments"], {}
    for word in shlex.split(shown)[3:]:
        if word.startswith("--"):
            values = given[word.removeprefix("--").replace("-", "_")] = []
        else:
            values.append(word)
    for name, values in given.items():
        found = ran[name]
        assert values == ([] if found is True else [*map(str, found if isinstance(found, list) else [found])]), name
    left_out = {name: value for name, value in ran.items() if name not in given and value}
    defaults = {"layers": [10], "rounds": 5, "dtype": "bfloat16", "tensor_parallel_size": 1, "model": "qwen3-8b"}
    assert left_out == defaults
