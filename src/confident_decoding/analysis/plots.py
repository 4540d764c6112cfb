"""One function per chart: from a summary to a matplotlib figure, in the colours of a light or a dark page."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from confident_decoding.analysis.texts import visible

Summary = dict[str, Any]
BLUE, ORANGE, GREEN = "#4c8dd6", "#e0822f", "#4fa36b"
"""Told apart by most colour-blind readers, on white and on dark grey."""
SIZE = (4.2, 2.9)
"""Inches: 400 pixels wide on a page, as wide as a telephone's, so that 8 points are legible there."""
_INK = {"light": "#1f2328", "dark": "#e6e8eb"}
_GRID = {"light": "#d9dde2", "dark": "#3c434c"}


@dataclass(frozen=True)
class Chart:
    """A figure and what it is.

    Attributes:
        name: Of its file.
        title: Above it.
        caption: What it shows, as a sentence.
        draw: Fills the axes.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Axes, Summary], None]


def single_tokens(axes: Axes, summary: Summary) -> None:
    """One token of each group: its entropies in the window, and the layer that is selected."""
    last, window = summary["layers"] - 1, summary["window"]
    for (group, token), color in zip(summary["typical"].items(), (BLUE, ORANGE, GREEN), strict=True):
        if token is None:
            continue
        final, selected = (_drawable(token[which]["text"]) for which in ("final", "selected"))
        label = f"{group}: {final}" + (f" → {selected}" if group == "replaced" else "")
        entropies, layers = token["entropy"][:window], range(last, last - window, -1)
        axes.plot(layers, entropies, marker="o", markersize=3, color=color, label=label)
        chosen = [last - token["depth"]], [token["entropy"][token["depth"]]]
        axes.plot(*chosen, "o", markersize=10, fillstyle="none", markeredgewidth=1.5, color=color)
    axes.set_xlabel(f"layer ({last} = the final one)")
    axes.set_ylabel("entropy, nats")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _from_zero(axes)
    if axes.lines:
        _legend(axes, columns=1)


def depths(axes: Axes, summary: Summary) -> None:
    """Share of tokens at each selected depth."""
    shares = [count / summary["tokens"] for count in summary["depths"]]
    bars = axes.bar(range(len(shares)), shares, color=[BLUE] + [ORANGE] * (len(shares) - 1))
    axes.bar_label(bars, [f"{100 * share:.0f}" if share >= 0.005 else "" for share in shares], fontsize=8)
    axes.set_xlabel("selected depth (0 = the final layer)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _percent(axes, "tokens")


def replaced_by_entropy(axes: Axes, summary: Summary) -> None:
    """Share of tokens whose best token changes, by the final layer's entropy."""
    bins = summary["by_final_entropy"]
    places = range(len(bins))
    axes.bar([x - 0.2 for x in places], _values(bins, "not_at_final"), 0.4, color=BLUE, label="not at final")
    axes.bar([x + 0.2 for x in places], _values(bins, "replaced"), 0.4, color=ORANGE, label="replaced")
    axes.set_xticks(list(places), [f"{_range(b)}\n{_short(b['tokens'])}" for b in bins], fontsize=7)
    axes.set_xlabel("final layer's entropy, nats; number of tokens below")
    _percent(axes, "tokens of the bin")
    _legend(axes)


def entropy_by_layer(axes: Axes, summary: Summary) -> None:
    """Mean entropy at each recorded layer, for three groups of tokens."""
    last = summary["layers"] - 1
    for (group, means), color in zip(summary["entropy_by_depth"].items(), (BLUE, ORANGE, GREEN), strict=True):
        points = [(last - depth, mean) for depth, mean in enumerate(means) if mean is not None]
        axes.plot(
            *zip(*points, strict=True) if points else ([], []), marker="o", markersize=3, color=color, label=group
        )
    axes.set_xlabel(f"layer ({last} = the final one)")
    axes.set_ylabel("mean entropy, nats")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _from_zero(axes)
    _legend(axes)


def entropy_drops(axes: Axes, summary: Summary) -> None:
    """How much lower the selected layer's entropy is, for tokens that are not at the final layer."""
    bins = summary["entropy"]["drops"]
    total = sum(b["tokens"] for b in bins) or 1
    axes.bar(range(len(bins)), [b["tokens"] / total for b in bins], color=ORANGE)
    axes.set_xticks(range(len(bins)), [_range(b).replace("-", "-\n") for b in bins], fontsize=7)
    axes.set_xlabel("entropy at the final layer minus at the selected one, nats")
    _percent(axes, "tokens not at final")


def positions(axes: Axes, summary: Summary) -> None:
    """Shares along a sequence."""
    parts = summary["by_position"]
    for name, color in (("not_at_final", BLUE), ("replaced", ORANGE)):
        points = [(p["decile"], p[name]) for p in parts if p[name] is not None]
        label = name.replace("_", " ")
        axes.plot(
            *zip(*points, strict=True) if points else ([], []), marker="o", markersize=3, color=color, label=label
        )
    axes.set_xlabel("tenth of the sequence")
    axes.set_xticks(range(1, len(parts) + 1))
    _percent(axes, "tokens")
    _from_zero(axes)
    _legend(axes)


def kinds(axes: Axes, summary: Summary) -> None:
    """Share of tokens that are replaced, by kind."""
    found = summary["by_kind"]
    shares = [part["replaced"] or 0.0 for part in found.values()]
    bars = axes.bar(range(len(found)), shares, color=ORANGE, width=0.6)
    axes.bar_label(bars, [f"{100 * share:.1f} %" for share in shares], fontsize=8)
    axes.set_xticks(range(len(found)), [f"{name}\n{_short(part['tokens'])} tokens" for name, part in found.items()])
    _percent(axes, "tokens of the kind")


def window_shares(axes: Axes, summary: Summary) -> None:
    """Shares by the number of candidate layers."""
    windows = summary["windows"]
    for name, color in (("not_at_final", BLUE), ("replaced", ORANGE)):
        label = name.replace("_", " ")
        axes.plot([w["window"] for w in windows], _values(windows, name), marker="o", ms=3, color=color, label=label)
    _percent(axes, "tokens")
    _window(axes, summary)


def window_work(axes: Axes, summary: Summary) -> None:
    """Mean depth, and projections beyond the final layer's, by the number of candidate layers."""
    windows = summary["windows"]
    for name, color, label in (
        ("mean_depth", BLUE, "mean depth"),
        ("extra_projections", GREEN, "extra projections"),
    ):
        axes.plot([w["window"] for w in windows], _values(windows, name), marker="o", ms=3, color=color, label=label)
    axes.set_ylabel("per token")
    _window(axes, summary)


CHARTS = (
    Chart(
        "single-tokens",
        "Single tokens",
        "Of each group of tokens the one that is nearest to its line in the chart of entropies by layer; ringed: the "
        "selected layer.",
        single_tokens,
    ),
    Chart("depths", "Selected depth", "How many layers before the final one the scan stops.", depths),
    Chart(
        "replaced-by-entropy",
        "By the final layer's entropy",
        "Tokens that another layer than the final one decides, and those whose best token changes.",
        replaced_by_entropy,
    ),
    Chart(
        "entropy-by-layer",
        "Entropy by layer",
        "Unperturbed: the final layer is selected. Perturbed: another one; replaced: its best token differs as well.",
        entropy_by_layer,
    ),
    Chart("entropy-drops", "Entropy drop", "What the selected layer's entropy is lower by.", entropy_drops),
    Chart("positions", "Along the sequence", "The same shares by tenths of the answer or text piece.", positions),
    Chart(
        "kinds",
        "By kind of token",
        "Replaced tokens, by the kind of the final layer's best one (a rule for English).",
        kinds,
    ),
    Chart("window-shares", "Other windows: tokens", "What other windows select on the same rows.", window_shares),
    Chart("window-work", "Other windows: depth and work", "Projections that a lazy scan needs.", window_work),
)


def figure(chart: Chart, summary: Summary, theme: str = "light") -> Figure:
    """One chart with a transparent background; ``theme`` is ``"light"`` or ``"dark"``."""
    ink = _INK[theme]
    style: Any = {
        "font.size": 9,
        "svg.fonttype": "none",  # text stays text
        "font.family": "sans-serif",
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": _GRID[theme],
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": _GRID[theme],
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        result = Figure(figsize=SIZE, layout="constrained")
        axes = result.add_subplot()
        axes.grid(axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        chart.draw(axes, summary)
        return result


def save_png(chart: Chart, summary: Summary, path: Path) -> None:
    """Write a chart on white.

    Raises:
        OSError: The file cannot be written.
    """
    drawn = figure(chart, summary)
    drawn.savefig(path, format="png", dpi=160, facecolor="white")


def svg(chart: Chart, summary: Summary, theme: str = "light", background: str = "none") -> str:
    """A chart as SVG, the same for the same summary."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.name}):
        buffer = io.StringIO()
        drawn = figure(chart, summary, theme)
        drawn.savefig(buffer, format="svg", metadata={"Date": None}, facecolor=background)
    return buffer.getvalue()


def data_uri(chart: Chart, summary: Summary, theme: str) -> str:
    """A chart as an SVG image in a ``data:`` address."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(chart, summary, theme).encode()).decode()


def _percent(axes: Axes, of: str) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g} %"))
    axes.set_ylabel(of)


def _window(axes: Axes, summary: Summary) -> None:
    _from_zero(axes)
    axes.axvline(summary["window"], color="#8a929c", linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"candidate layers K (dotted: {summary['window']})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)


def _from_zero(axes: Axes) -> None:
    """Begin at 0, with room above the highest point: matplotlib's own margin is one of the range of the points."""
    heights = np.concatenate([[0.0], *(np.asarray(line.get_ydata(), float) for line in axes.lines)])
    axes.set_ylim(0, 1.08 * np.nanmax(heights) or 1)  # a NaN is a gap in its line


def _legend(axes: Axes, columns: int = 3) -> None:
    place: Any = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": columns}
    axes.legend(fontsize=8, handlelength=1.4, columnspacing=1.2, labelspacing=0.2, **place)


def _drawable(text: str) -> str:
    """A token with everything in it to be seen, in letters that the font has, and nothing taken for a formula."""
    plain = text.encode("latin-1", "backslashreplace").decode("latin-1")
    return visible(plain).replace("$", r"\$")


def _values(parts: list[dict[str, Any]], name: str) -> list[float]:
    return [part[name] or 0.0 for part in parts]


def _range(part: dict[str, Any]) -> str:
    return f"≥{part['from']:g}" if part["to"] is None else f"{part['from']:g}-{part['to']:g}"


def _short(count: int) -> str:
    """A count in four characters or fewer: 950, 9.5k, 95k, 1.2M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.2g}{name}" if count < 10 * unit else f"{count / unit:.0f}{name}"
    return str(count)
