"""Fills the tables and the chart of docs/performance.md from the results in benchmarks/results.

python -m tools.performance_doc
"""

from collections.abc import Iterable
from typing import Any

from benchmarks.floor import floors, step_ms
from tools.marked import ROOT, filled, result

PAGE = ROOT / "docs/performance.md"
CHART = ROOT / "docs/images/overhead.svg"


def overhead_table(data: Any) -> str:
    """Milliseconds and ratios of a step, setting by setting."""
    median = data["median"]
    columns = list(median["stock"])
    titles = [f"B={column}" if column.isdigit() else column for column in columns]
    lines = ["| setting | " + " | ".join(titles) + " |", "|---" * (1 + len(columns)) + "|"]
    for setting, row in median.items():
        cells = []
        for column in columns:
            cell = row[column]
            spread = "" if setting == "stock" else f" {cell['ratio']:.3f}x ({cell['least']:.2f} to {cell['most']:.2f})"
            cells.append(f"{cell['ms']:.2f} ms{spread}")
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join([described(data), "", *lines])


def kernels_table(data: Any) -> str:
    """Each kernel beside its floor."""
    lines = ["| kernel | ms | floor, ms | floor / ms |", "|---|---|---|---|"]
    for line in data["kernels"]:
        share = f"{100 * line['share_of_floor']:.0f}%" if line["floor_ms"] else ""
        floor = f"{line['floor_ms']:.4f}" if line["floor_ms"] else ""
        lines.append(f"| {line['kernel']} | {line['ms']:.4f} | {floor} | {share} |")
    speeds = (
        f"Copying {data['copy_bytes_per_second'] / 1e12:.2f} TB/s, large bf16 products "
        f"{data['matrix_flops'] / 1e12:.0f} TFLOP/s."
    )
    return "\n".join([described(data), speeds, "", *lines])


def scan_table(data: Any) -> str:
    """One head call by batch size."""
    titles = "| rows | scan | depths | stock, ms | more than stock, ms | launching, host ms |"
    lines = [titles, "|---|---|---|---|---|---|"]
    for call in data["calls"]:
        lines.append(
            f"| {call['batch']} | {call['scan']} | {call['histogram']} | {call['stock_ms']:.3f} "
            f"| {call['ms'] - call['stock_ms']:.3f} | {call['host_ms']:.2f} |"
        )
    return "\n".join([described(data), "", *lines])


def parts_table(data: Any) -> str:
    """Where a step is longer than stock's: by events on the GPU, the faster of two times."""
    titles = [f"B={batch}" for batch in data["parts"]]
    lines = ["| ms | " + " | ".join(titles) + " |", "|---" * (1 + len(titles)) + "|"]
    cases = list(next(iter(data["parts"].values())))
    head, forward = "_apply_head", "run_fullgraph"

    def row(name: str, cells: Iterable[float]) -> str:
        return f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"

    def least(case: str, part: str) -> list[float]:
        return [min(times[part] for times in of[case]) for of in data["parts"].values()]

    lines += [row("stock: forward", least("stock", forward)), row("stock: head call", least("stock", head))]
    for case in cases:
        if case != "stock":
            more = zip(least(case, head), least("stock", head), strict=True)
            lines.append(row(f"{case}: head call, more", (mine - stock for mine, stock in more)))
    more = zip(least(cases[1], forward), least("stock", forward), strict=True)
    lines.append(row(f"{cases[1]}: forward, more", (mine - stock for mine, stock in more)))
    return "\n".join([described({"machine": data["machine"]}), "", *lines])


def metrics_table(data: Any) -> str:
    """How much longer the head call is with metrics on, and which share of a step that is."""
    titles = [f"B={batch}" for batch in data["parts"]]
    lines = ["| depths | " + " | ".join(titles) + " |", "|---" * (1 + len(titles)) + "|"]
    head = "_apply_head"
    for histogram in data["arguments"]["forced"]:
        cells = []
        for of in data["parts"].values():
            off, counting = of[f"planned, {histogram}"], of[f"metrics, {histogram}"]
            more = min(times[head] for times in counting) - min(times[head] for times in off)
            cells.append(f"{more:.3f} ms, {100 * more / step_ms(off):.2f}%")
        lines.append(f"| {histogram} | " + " | ".join(cells) + " |")
    return "\n".join([described({"machine": data["machine"]}), "", *lines])


def floors_table(data: Any) -> str:
    """Each scan beside the least that an exact one can cost."""
    lines = ["| requests in a step | scan | ratio by events | floor | aim |", "|---|---|---|---|---|"]
    for line in floors(data, result("kernels-h200")):
        mark = "" if line["ratio"] <= line["aim"] else " (missed)"
        case = f"{line['case']} | {line['ratio']:.3f}x{mark} | {line['floor']:.3f} | {line['aim']:.3f}"
        lines.append(f"| {line['batch']} | {case} |")
    return "\n".join(lines)


def vllm_table(data: Any) -> str:
    """What vLLM's own benchmarks say, off and on."""
    lines = ["| benchmark | | off | on | ratio |", "|---|---|---|---|---|"]
    for kind, row in data["median"].items():
        for name, cell in row.items():
            lines.append(
                f"| `vllm bench {kind}` | {name} | {cell['off']:.2f} | {cell['on']:.2f} | {cell['ratio']:.3f}x |"
            )
    count = len(data["rounds"])
    rounds = f"Medians of {count} rounds." if count > 1 else "One round."
    return "\n".join([described({"machine": data["machine"]}), rounds, "", *lines])


def described(data: Any) -> str:
    """The machine and what was run on it, as a sentence."""
    machine = data["machine"]
    device = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    versions = ", ".join(f"{key} {machine[key]}" for key in ("vllm", "torch", "triton") if machine.get(key))
    count = len(data.get("rounds", []))
    rounds = f", median of {count} rounds (range in brackets)" if count > 1 else ""
    return f"{device}; {versions}; commit {machine['commit']}{rounds}."


MAKERS = {
    "overhead": overhead_table,
    "parts": parts_table,
    "metrics": metrics_table,
    "floors": floors_table,
    "kernels": kernels_table,
    "scan": scan_table,
    "vllm": vllm_table,
}


def page() -> str:
    """The page with its tables made anew."""
    return filled(PAGE, MAKERS)


def draw() -> None:
    """The chart of ratios by batch size."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "confident-decoding", "font.size": 9})
    parts = result("overhead-h200-tp1")["parts"]
    figure, axes = plt.subplots(figsize=(6.4, 3.4))
    for case in next(iter(parts.values())):
        if case != "stock":
            ratios = [step_ms(of[case]) / step_ms(of["stock"]) for of in parts.values()]
            axes.plot(list(parts), ratios, marker="o", label=case)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xlabel="requests in a step", ylabel="a step's GPU time, ratio to stock vLLM")
    axes.legend(fontsize=7)
    figure.tight_layout()
    CHART.parent.mkdir(exist_ok=True)
    figure.savefig(CHART, metadata={"Date": None})


if __name__ == "__main__":
    PAGE.write_text(page())
    draw()
