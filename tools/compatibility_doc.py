"""Writes docs/compatibility.md from tests/compatibility.toml.

python -m tools.compatibility_doc
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import BY_RUNNER, RAN

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/compatibility.toml"
PAGE = ROOT / "docs/compatibility.md"
RESULTS = ROOT / "benchmarks/results"
VERDICTS = {
    "works": "a test runs it in a real engine or server, on the CPU, and compares the answers",
    "GPU only": "vLLM has it on GPUs alone; the check named is for there (`python -m benchmarks.gpu_check NAME`), and "
    "what it said is at the end of this page",
    "refused": "the start, or the request, fails with a message that names it",
    "not applicable": "the plugin stands aside; a test shows that nothing else changes",
}
INTRO = """\
# Compatibility

*This page is made from tests/compatibility.toml by `python -m tools.compatibility_doc`; do not edit it.*

What runs with Confident Decoding on, feature by feature of vLLM, and the test that shows it. A test checks that every
test named here exists, and that every refusal in `plugin/compat.py` has a row.

"""
CHECKS = """\
## Checks on GPUs

What `python -m benchmarks.gpu_check` said, check by check (`benchmarks/results/checks-*.jsonl`). Where answers are
compared to the bit, `VLLM_BATCH_INVARIANT=1` and `TORCHINDUCTOR_DETERMINISTIC=1` are set: without the second,
torch.compile times variants of a kernel while an engine starts and takes the fastest, so that two starts of one server
need not round alike.

"""
OPEN = {
    "drafters": "What a draft model proposed with p=0 differed somewhere from a standard server's proposals; tokens "
    "and logprobs were equal to the bit. Proposals for requests that had ended were compared as well; the check has "
    "been changed not to.",
    "experts": "Four ranks that share one GPU: no engine answered, for a reason that was not kept.",
    "graphs": "Three of eight prompts differed from an eager engine's in their first tokens' logprobs, with every kind "
    "of CUDA graph and in both runners. The check asked for three logprobs: where rounding swaps the third and the "
    "fourth, one is missing. Compiled and eager on the CPU, three prompts differ so too, and of eight logprobs none "
    "is further apart than 0.12 nats. The check has been changed: eight logprobs, and a compiled engine without graphs "
    "to compare with.",
    "lora": "In the second runner, batch-invariant, a batch of mixed adapters gave the tokens of batches with one "
    "adapter each, but not all bits of their logprobs. Whether stock vLLM's are equal there was not asked; now the "
    "check asks.",
    "parallel": "In bfloat16 the first tokens of two ranks and of one were not all equal; now float32 is compared. The "
    "rest did not run in its time.",
    "quantised": "fp8 passed; the time limit ended the others.",
}
"""What is to be said of checks of which not everything passed, or that did not end."""


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


def checks() -> dict[str, list[dict[str, Any]]]:
    """The kept results of `benchmarks.gpu_check`, by check: of the commit of its last one."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("checks-*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            found.setdefault(line["check"], []).append(line)
    return {name: [r for r in lines if r["commit"] == lines[-1]["commit"]] for name, lines in found.items()}


def passed_whole(lines: list[dict[str, Any]]) -> bool:
    """Whether a check ran to its end, in each runner that it goes through, and all of it passed."""
    ends = " ".join(line["detail"] for line in lines if line["name"] == RAN)
    ended = set(re.findall(r"\d", ends)) == {"0", "1"} if lines[0]["check"] in BY_RUNNER else lines[-1]["name"] == RAN
    return ended and all(line["passed"] for line in lines)


def checks_table() -> str:
    """What each check on GPUs said when it last ran, a line each."""
    lines = ["| check | results | passed | ran on | to be repeated |", "|---|---|---|---|---|"]
    results = checks()
    named = {
        reference.split("::")[1]
        for group in rows().values()
        for row in group
        for reference in row["shown"]
        if reference.startswith("benchmarks/")
    }
    for name in sorted(named | set(results)):
        found = results.get(name, [])
        where = sorted({f"{r['gpu']}, vLLM {r['vllm']}, commit {r['commit']}" for r in found})
        passed = sum(r["passed"] for r in found)
        lines.append(f"| `{name}` | {len(found)} | {passed} | {'; '.join(where)} | {OPEN.get(name, '')} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    verdicts = "\n".join(f"- **{verdict}**: {meaning}." for verdict, meaning in VERDICTS.items())
    groups = [f"## {name}\n\n{table(group)}" for name, group in rows().items()]
    return "\n".join([INTRO + verdicts + "\n", *groups, CHECKS + checks_table()])


if __name__ == "__main__":
    PAGE.write_text(page())
