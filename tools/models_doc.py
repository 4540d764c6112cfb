"""Writes docs/models.md from the evidence in benchmarks/results/models-*.jsonl.

    python -m tools.models_doc

The evidence is made by ``python -m models.prove`` (from tests/); the list of other architectures by
``python -m tools.architectures``.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from models.checkpoints import BEYOND, GPU_ONLY, LISTED  # noqa: E402
from models.criteria import problems  # noqa: E402

PAGE = ROOT / "docs/models.md"
RESULTS = ROOT / "benchmarks/results"
NAMES = {
    "LlamaForCausalLM-tied": "with a tied head",
    "LlamaForCausalLM-oddvocab": "with a vocabulary that needs padding",
    "Gemma4ForCausalLM-ple": "with per-layer inputs and shared keys and values",
    "Gemma4ForCausalLM-moe": "with experts",
    "DeepseekV3ForCausalLM-mha": "with latent attention switched off",
    "GlmMoeDsaForCausalLM": "with its attention dense",
    "GlmMoeDsaForCausalLM-sparse": "with its sparse attention",
}
INTRO = """\
# Models

*This page is made from test results by `python -m tools.models_doc`; do not edit it.*

Every architecture below was run as a tiny random checkpoint with the family's real structure, through the real vLLM
engine with the plugin on, and compared with transformers on the same tokens: at every layer that can be selected, the
normed state and its logits; the selected depths; and p = 0 against the plugin switched off, to the bit. What one line
must show is in `tests/models/criteria.py`:

- float32: states and logits within 1e-3 of transformers'; every depth that is decided by more than 1e-3 nats equal.
- bfloat16 (where a backend has nothing else, and on GPUs): at every layer, a relative error of at most 1.5 times that
  of stock vLLM's own final state against transformers, so a captured state is as exact as what stock returns; every
  depth that is decided by more than twice the largest difference in entropy equal; and every depth equal to the one
  that a float64 entropy of the engine's own logits gives, where more than the rounding of those logits decides it
  (1e-3 nats in the lines below).
- The plugin switched off, and a second model of the same class loaded as a drafter is: stock in every respect.

`rows` counts the tokens compared, of which `decided` had a depth that rounding cannot change; all of those were equal.
"""


def evidence() -> list[dict]:
    """All lines, with the file that each came from."""
    return [
        {**json.loads(line), "file": path.name}
        for path in sorted(RESULTS.glob("models-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def label(tag: str) -> str:
    """The architecture, and what is special about the row."""
    return f"`{tag.split('-', maxsplit=1)[0]}`" + (f" {NAMES[tag]}" if tag in NAMES else "")


def where(row: dict) -> str:
    """Device and how it was run."""
    device = "CPU" if row["device"] == "CPU" else row["device"].replace("NVIDIA ", "")
    options = row["options"]
    kind = "compiled" if options.get("enforce_eager") is False else "eager"
    if options.get("tensor_parallel_size", 1) > 1:
        kind += f", TP={options['tensor_parallel_size']}"
    if row.get("runner"):
        kind += f", {row['runner']}"
    return f"{device}, {kind}"


def cells(row: dict) -> Iterator[str]:
    """The columns of one line of evidence."""
    exact = row["dtype"] == "float32"
    errors = row["relative_error_by_depth"]
    yield f"{row['vllm']}"
    yield where(row)
    yield row["dtype"]
    yield f"{row['state_error']:.0e}" if exact else f"{max(errors[1:]):.1%} / {errors[0]:.1%}"
    yield f"{row['logit_error']:.0e}"
    yield f"{row['rows']} / {row['depths']['compared']}"
    yield {True: "equal", False: "rounds differently"}[row["p0_bit_equal"]]
    yield "yes" if "image" in row else ""


HEADER = (
    "| architecture | vLLM | where | dtype | state: largest error (bfloat16: candidate / stock's final) "
    "| logits: largest error | rows / decided | p = 0 | image |\n|---|---|---|---|---|---|---|---|---|\n"
)


def table(tags: list[str], rows: list[dict]) -> str:
    """One line per tag and run."""
    by_tag = defaultdict(list)
    for row in rows:
        by_tag[row["tag"]].append(row)
    lines = []
    for tag in tags:
        for number, row in enumerate(by_tag[tag]):
            lines.append(f"| {label(tag) if number == 0 else ''} | " + " | ".join(cells(row)) + " |")
    return HEADER + "\n".join(lines) + "\n"


def others() -> str:
    """The rest of vLLM's registry, by what the general mechanism makes of it."""
    survey = json.loads((RESULTS / "architectures.json").read_text())
    proven = {tag.split("-")[0] for tag in LISTED + BEYOND + GPU_ONLY}
    by_kind = defaultdict(list)
    for row in survey["architectures"]:
        if row["architecture"] not in proven:
            by_kind[row["capture"]].append(f"`{row['architecture']}`")
    text = {
        "captures": "**Taken by the general mechanism.** vLLM captures in their inner model. They run if the proof at "
        "startup holds on the loaded weights (docs/design.md), and are refused by name if not. Not tested here:",
        "text model": "**Decided by the text model in the checkpoint.** Wrappers around whatever text model a "
        "checkpoint names; taken if that one captures:",
        "none": "**Refused by name:** no capture in vLLM (or the forward leaves it out, as MiMo's does):",
        "not importable": "Not looked at (their modules need packages that the survey's machine lacks):",
    }
    parts = [f"vLLM {survey['vllm']}, from its registry by `python -m tools.architectures`.\n"]
    for kind, sentence in text.items():
        parts.append(f"{sentence} {', '.join(by_kind[kind])}.\n")
    return "\n".join(parts)


def page() -> str:
    """The whole page.

    Raises:
        SystemExit: A line of evidence fails, or a promised architecture has none on the CPU.
    """
    rows = evidence()
    failing = [f"{row['file']}: {row['tag']}: {p}" for row in rows for p in problems(row)]
    missing = [tag for tag in LISTED + BEYOND if not any(r["tag"] == tag and r.get("device") == "CPU" for r in rows)]
    if failing or missing:
        raise SystemExit("\n".join([*failing, *(f"no CPU evidence: {tag}" for tag in missing)]))
    notes = (ROOT / "benchmarks/results/models-notes.md").read_text()
    return "\n".join(
        [
            INTRO,
            "## The families we promise\n",
            table(LISTED + GPU_ONLY, rows),
            "## Others, tested\n",
            table(BEYOND, rows),
            notes,
            "## The rest of vLLM's registry\n",
            others(),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
