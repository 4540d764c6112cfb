"""The report: one HTML file that needs nothing else, with the charts and the text, token by token."""

import base64
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from confident_decoding.analysis import plots
from confident_decoding.analysis.recorder import TOPS
from confident_decoding.analysis.texts import visible
from confident_decoding.analysis.trace import Token, Trace

_SOURCES = {
    "confident": "Greedy answers of Confident Decoding: each token is the selected layer's best.",
    "standard": "Greedy answers of standard decoding: each token is the final layer's best; what Confident Decoding "
    "would have selected there is recorded.",
    "text": "A given text, read by the model (teacher forcing): what each layer would have put at each place.",
}


@dataclass
class _Article:
    """One sequence as the page shows it."""

    label: str
    prompt: str | None
    tokens: list[dict[str, Any]] = field(default_factory=list)


def write_page(
    path: Path, summary: dict[str, Any], trace: Trace, prompts: dict[int, str], spell: Callable[[int], str]
) -> None:
    """Write the report.

    Args:
        path: The file.
        summary: Of `summary.summarise`.
        trace: Whose rows with best tokens are shown.
        prompts: What comes before a sequence, as text, by the number of the sequence.
        spell: A token as text.

    Raises:
        OSError: It cannot be written.
    """
    details = _Details(summary["window"], spell)
    articles: list[_Article] = []
    last = -1
    for token in trace.tokens():
        if token.sequence != last:
            last = token.sequence
            what = "Piece" if summary["trajectory"] == "text" else "Answer"
            articles.append(_Article(f"{what} {last + 1}", prompts.get(last)))
        details.add(token)
        changed = token.selected_token != token.final_token
        articles[-1].tokens.append({"text": _shown(token.text), "depth": token.depth, "changed": changed})
    script = _asset("report.js")
    environment = Environment(
        loader=PackageLoader("confident_decoding.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, visible=visible)
    shown = details.tokens
    note = "" if shown == summary["tokens"] else f"The first {shown:,} of {summary['tokens']:,} tokens."
    page = environment.get_template("report.html.j2").generate(
        summary=summary,
        source=_SOURCES[summary["trajectory"]],
        figures=_figures(summary),
        charts=[
            {
                "title": chart.title,
                "caption": chart.caption,
                **{theme: plots.data_uri(chart, summary, theme) for theme in ("light", "dark")},
            }
            for chart in plots.CHARTS
        ],
        articles=articles,
        text_note=note,
        data=details.packed(),
        css=Markup(_asset("report.css")),
        script=Markup(script),
        # Nothing but this very script may run, whatever a prompt holds.
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    with path.open("w", encoding="utf-8") as file:
        file.writelines(page)


class _Details:
    """What is shown of a token that is pointed at, of all tokens, packed."""

    def __init__(self, window: int, spell: Callable[[int], str]) -> None:
        self._window, self._spell = window, spell
        self._ids: list[int] = []
        self._columns: dict[str, list[int]] = {"depth": [], "entropy": [], "probabilities": []}

    @property
    def tokens(self) -> int:
        """How many."""
        return len(self._columns["depth"])

    def add(self, token: Token) -> None:
        """One more token; candidates beyond the window are left out."""
        k = self._window
        self._ids += token.top_tokens[:k].ravel().tolist()
        self._columns["depth"].append(token.depth)
        self._columns["entropy"] += _thousandths(token.entropy[:k])
        self._columns["probabilities"] += _thousandths(token.top_probabilities[:k].ravel())

    def packed(self) -> str:
        """JSON, deflated, in base64: nothing in it can end a script element."""
        words = [token for token, _ in Counter(self._ids).most_common()]  # frequent ones get short numbers
        place = {token: number for number, token in enumerate(words)}
        value = {
            "window": self._window,
            "best": TOPS,
            "words": [visible(self._spell(token)) for token in words],
            "tops": [place[token] for token in self._ids],
            **self._columns,
        }
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return base64.b64encode(zlib.compress(data, 9)).decode()


def _thousandths(values: NDArray[np.float32]) -> list[int]:
    """Whole thousandths; -1 for what is no number, which JSON does not have."""
    exact = np.nan_to_num(values.astype(np.float64) * 1000, nan=-1, posinf=-1, neginf=-1)
    whole: list[int] = exact.round().astype(int).tolist()
    return whole


def _shown(text: str) -> str:
    """A token in its text: something to point at, also where it is a line's end or a part of a character."""
    return text.replace("\n", "↵\n") or "▫"


def _figures(summary: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "tokens", f"{summary['tokens']:,}", f"in {summary['sequences']:,} sequences"
    yield "not at final", _percent(summary["not_at_final"]), "another layer than the final one is selected"
    yield "replaced", _percent(summary["replaced"]), "its best token is another one"
    yield "mean depth", f"{summary['mean_depth']:.2f}", "layers before the final one"
    yield "extra projections", f"{summary['extra_projections']:.2f}", "a token, in a lazy scan"
    yield (
        "entropy drop",
        f"{summary['entropy']['drop']:.3f}",
        "nats a token, of " + f"{summary['entropy']['final']:.3f}",
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def _asset(name: str) -> str:
    return resources.files("confident_decoding.analysis").joinpath("templates", name).read_text(encoding="utf-8")
