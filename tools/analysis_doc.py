"""Fills the figures of docs/how-it-works.md and the table of docs/analysis.md from an analysis of the embedded model.

python -m tools.analysis_doc          draws the figures and writes captions and table, from benchmarks/results
python -m tools.analysis_doc --run    runs the analysis anew before that (minutes)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from confident_decoding.analysis import plots
from confident_decoding.analysis.texts import visible
from tools.marked import RESULTS, ROOT, filled

FIGURES, TABLE = ROOT / "docs/how-it-works.md", ROOT / "docs/analysis.md"
IMAGES = ROOT / "docs/images"
RESULT = RESULTS / "analysis-smollm2.json"
CHARTS = {chart.name: chart for chart in plots.CHARTS if chart.name in ("single-tokens", "entropy-by-layer")}
OPTIONS = ["--trajectory", "standard", "--max-tokens", "128", "--window", "10", "--sweep", "20"]


def run() -> None:
    """Analyse the embedded model and keep the figures, without how fast this machine was."""
    sys.path[:0] = [str(ROOT / "tests")]
    from conftest import ENGINE_ENV, QUESTIONS

    from demo.checkpoint import smollm2

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = [json.dumps({"messages": [{"role": "user", "content": question}]}) for question in QUESTIONS]
        (folder / "prompts.jsonl").write_text("\n".join(asked))
        command = [sys.executable, "-m", "confident_decoding.cli", "analyze", str(smollm2()), "prompts.jsonl"]
        command += [*OPTIONS, "--vllm", "--dtype float32", "-o", "out"]
        subprocess.run(command, cwd=folder, env={**os.environ, **ENGINE_ENV}, check=True)
        summary = json.loads((folder / "out/summary.json").read_text())
    del summary["speed"]
    RESULT.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def settings(summary: dict[str, Any]) -> str:
    """What was analysed, as a part of a sentence."""
    model = f"SmolLM2-135M-Instruct ({summary['layers']} layers, {summary['dtype']})"
    answers = f"greedy answers of standard decoding to {summary['sequences']} questions"
    return f"{model}, {summary['tokens']:,} tokens of the {answers}, {summary['window']} candidate layers"


def single_tokens(summary: dict[str, Any]) -> str:
    """The figure of three tokens, and what is seen in it."""
    last, sentences = summary["layers"] - 1, []
    for group, token in summary["typical"].items():
        final, selected = (f"<code>{visible(token[which]['text'])}</code>" for which in ("final", "selected"))
        depth, entropy = token["depth"], token["entropy"]
        at, valley = f"{entropy[0]:.2f} nats at layer {last}", f"{entropy[depth]:.2f} at layer {last - depth}"
        sentences.append(
            {
                "unperturbed": f"{final} (blue) stays: {at}, and {entropy[1]:.2f} one layer before, so that the scan "
                "does not leave the final layer.",
                "perturbed": f"{final} (orange): the last layers raised the entropy from {valley} to {at}; the earlier "
                "layer is selected, and its best token is the same.",
                "replaced": f"{final} (green): {at}, {valley}; the best token of the selected layer is {selected}.",
            }[group]
        )
    return figure(
        "single-tokens", "Entropy of three tokens by layer; ringed: the selected one", summary, " ".join(sentences)
    )


def entropy_by_layer(summary: dict[str, Any]) -> str:
    """The figure of means, and what is seen in it."""
    means, last = summary["entropy_by_depth"], summary["layers"] - 1
    unperturbed, perturbed, replaced = (means[group] for group in ("unperturbed", "perturbed", "replaced"))
    moved, changed = f"{summary['not_at_final']:.1%}", f"{summary['replaced']:.1%}"
    seen = (
        f"For {moved} of the tokens an earlier layer is selected: there the last layer raises the mean entropy "
        f"(orange, {perturbed[1]:.2f} nats at layer {last - 1}, {perturbed[0]:.2f} at layer {last}). For the others it "
        f"lowers it (blue, {unperturbed[1]:.2f} and {unperturbed[0]:.2f}). The {changed} of tokens whose best token "
        f"changes (green, part of orange) are the least certain at the end: {replaced[0]:.2f} nats."
    )
    return figure("entropy-by-layer", "Mean entropy by layer of three groups of tokens", summary, seen)


def figure(name: str, title: str, summary: dict[str, Any], seen: str) -> str:
    """An image and its caption."""
    return f"![{title}; the caption gives the numbers](images/{name}.svg)\n\n*{title}. {settings(summary)}.*\n\n{seen}"


def example(summary: dict[str, Any]) -> str:
    """The table of the worked example."""
    shares = [f"{100 * summary[key]:.1f} %" for key in ("not_at_final", "replaced", "replaced_of_not_at_final")]
    final, drop = summary["entropy"]["final"], summary["entropy"]["drop"]
    lines = {
        "not at final": shares[0],
        "replaced": f"{shares[1]}; of those not at final {shares[2]}",
        "mean depth": f"{summary['mean_depth']:.2f}",
        "extra projections": f"{summary['extra_projections']:.2f} a token",
        "mean entropy": f"{final:.2f} nats at the final layer, {drop:.2f} lower at the selected one",
    }
    return "\n".join(["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines.items()), ""])


def reading(data: dict[str, Any]) -> str:
    """How fast texts are read, beside the machine's matrix products."""
    host, median, rounds = data["machine"], data["median"], data["rounds"]
    shares = [100 * one["share_of_gemm"] for one in rounds]
    rates = [one["tokens_per_second"] for one in rounds]
    return (
        f"SmolLM2-135M in {data['arguments']['dtype']}, {median['tokens']:,.0f} tokens in prefills of up to 2,048, "
        f"{median['window']:.0f} candidates, {host['threads']} core(s) of {host['cpu']}, vLLM's CPU build "
        f"{host['vllm']}; commit {host['commit']}, median of {len(rounds)} runs and their range: "
        f"{median['tokens_per_second']:.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f}), where the matrix products "
        "alone would allow "
        f"{median['gemm_tokens_per_second']:.0f} at the {median['head_gflops_per_second']:.0f} GFLOP/s that the head's "
        f"product reached in the same run: {100 * median['share_of_gemm']:.0f} % ({min(shares):.0f} to "
        f"{max(shares):.0f}). `python -m benchmarks.reading` measures it."
    )


MAKERS = {"reading": reading, "single-tokens": single_tokens, "entropy-by-layer": entropy_by_layer, "example": example}


def main() -> None:
    """Write pages and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    if parser.parse_args().run:
        run()
    for page in (FIGURES, TABLE):
        page.write_text(filled(page, MAKERS))
    summary = json.loads(RESULT.read_text())
    for name, chart in CHARTS.items():
        (IMAGES / f"{name}.svg").write_text(plots.svg(chart, summary, background="white"))


if __name__ == "__main__":
    main()
