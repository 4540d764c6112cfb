"""Writes docs/compatibility.md from tests/compatibility.toml.

python -m tools.compatibility_doc
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/compatibility.toml"
PAGE = ROOT / "docs/compatibility.md"
VERDICTS = {
    "works": "a test runs it in a real engine or server, on the CPU, and compares the answers",
    "GPU only": "vLLM has it on GPUs alone; the check named runs there (`python -m benchmarks.gpu_check NAME`)",
    "refused": "the start, or the request, fails with a message that names it",
    "not applicable": "the plugin stands aside; a test shows that nothing else changes",
    "not run": "accepted at the start, because nothing speaks against it; no test runs it",
}
INTRO = """\
# Compatibility

*This page is made from tests/compatibility.toml by `python -m tools.compatibility_doc`; do not edit it.*

What runs with Confident Decoding on, feature by feature of vLLM, and the test that shows it. A test checks that every
test named here exists, and that every refusal in `plugin/compat.py` has a row.

"""


def rows() -> dict[str, list[dict]]:
    """The rows of each group, in their order."""
    return tomllib.loads(TABLE.read_text())


def shown_by(reference: str) -> str:
    """A test by its file and name, a check on GPUs by its command's; no link, the site holds neither."""
    path, name = reference.split("::")
    return f"`{Path(path).stem} {name}`" if path.startswith("benchmarks/") else f"`{path}::{name}`"


def table(group: list[dict]) -> str:
    """One line a row."""
    lines = ["| feature | verdict | since | shown by | note |", "|---|---|---|---|---|"]
    for row in group:
        shown = "<br>".join(shown_by(reference) for reference in row["shown"])
        lines.append(f"| {row['feature']} | **{row['verdict']}** | {row['since']} | {shown} | {row.get('note', '')} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    verdicts = "\n".join(f"- **{verdict}**: {meaning}." for verdict, meaning in VERDICTS.items())
    groups = [f"## {name}\n\n{table(group)}" for name, group in rows().items()]
    return "\n".join([INTRO + verdicts + "\n", *groups])


if __name__ == "__main__":
    PAGE.write_text(page())
