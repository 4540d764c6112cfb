"""Results of all units, put side by side: one JSON document and tables."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from confident_decoding.engines.answers import places_changed
from confident_decoding.evaluation.folder import FolderError
from confident_decoding.evaluation.paired import Comparison, compare
from confident_decoding.evaluation.settings import STANDARD

NOT_A_MEAN = "not a mean of scores of single questions: no interval"
Result = dict[str, Any]


def build(
    results: Mapping[tuple[str, str], Result],
    tasks: Iterable[str],
    settings: Iterable[str],
    groups: Mapping[str, Sequence[str]],
    seed: int,
) -> list[dict[str, Any]]:
    """One entry for each task, or group of tasks, and each setting that is not standard.

    Args:
        results: Of each task and setting.
        tasks: In order.
        settings: Names, in order.
        groups: Tasks of each group; their questions are pooled.
        seed: Of the bootstrap.

    Raises:
        FolderError: Two results of a task are not of the same questions and prompts.
    """
    entries = []
    others = [setting for setting in settings if setting != STANDARD]
    for task in tasks:
        for setting in others:
            pairs = [(results[task, STANDARD], results[task, setting])]
            entries.append({"task": task, "setting": setting, **_entry(task, pairs, seed)})
    for group, members in groups.items():
        for setting in others:
            pairs = [(results[task, STANDARD], results[task, setting]) for task in members]
            entries.append({"task": group, "tasks": list(members), "setting": setting, **_entry(group, pairs, seed)})
    return entries


def _entry(name: str, pairs: list[tuple[Result, Result]], seed: int) -> dict[str, Any]:
    for a, b in pairs:
        if _prompts(a) != _prompts(b):
            raise FolderError(
                f"task {name!r}: two settings were not asked the same questions with the same prompts, so what the "
                "prompts are made of has changed since the first of them. Give another --output."
            )
    keys = [key for key in pairs[0][0]["scores"] if all(key in a["scores"] for a, _ in pairs)]
    return {
        "questions": sum(len({sample["question"] for sample in a["samples"]}) for a, _ in pairs),
        **_changes(pairs),
        "metrics": [metric for key in keys if (metric := _metric(key, pairs, seed))],
    }


def _prompts(result: Result) -> list[tuple[Any, ...]]:
    return [(sample["question"], sample["filter"], sample["prompt"]) for sample in result["samples"]]


def _changes(pairs: list[tuple[Result, Result]]) -> dict[str, float | None]:
    """Shares of answers and of tokens that are not those of standard decoding."""
    answers = changed = places = moved = 0
    for a, b in pairs:
        for x, y in zip(a["samples"], b["samples"], strict=True):
            if x["answer"] is None:
                continue
            answers += 1
            changed += x["answer"] != y["answer"]
            for one, other in zip(x.get("tokens", ()), y.get("tokens", ()), strict=True):
                differ, length = places_changed(one, other)
                moved, places = moved + differ, places + length
    return {
        "answers_changed": changed / answers if answers else None,
        "tokens_changed": moved / places if places else None,
    }


def _metric(key: str, pairs: list[tuple[Result, Result]], seed: int) -> dict[str, Any] | None:
    metric, _, chosen = key.partition(",")
    columns = [_column(pair, metric, chosen, key) for pair in pairs]
    entry = {
        "metric": metric,
        "filter": chosen,
        "higher_is_better": pairs[0][0]["higher_is_better"].get(metric),
    }
    if all(columns):
        first, second = ([value for column in columns if column for value in column[side]] for side in (0, 1))
        return {**entry, **dataclasses.asdict(compare(first, second, seed)), "note": None}
    if len(pairs) > 1:
        return None  # what is no mean cannot be pooled
    ((a, b),) = pairs
    standard, score = _finite(a["scores"][key]), _finite(b["scores"].get(key))
    difference = None if standard is None or score is None else score - standard
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Comparison))
    return {**entry, **nothing, "standard": standard, "score": score, "difference": difference, "note": NOT_A_MEAN}


def _column(pair: tuple[Result, Result], metric: str, chosen: str, key: str) -> tuple[list[float], list[float]] | None:
    """Scores of single questions under both settings, if the task's score is their mean."""
    columns = []
    for result in pair:
        values = [sample["metrics"].get(metric) for sample in result["samples"] if sample["filter"] == chosen]
        if not values or any(value is None or not math.isfinite(value) for value in values):
            return None
        if not math.isclose(sum(values) / len(values), result["scores"].get(key, math.nan), rel_tol=1e-6, abs_tol=1e-9):
            return None
        columns.append(values)
    return columns[0], columns[1]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def tables(entries: Iterable[dict[str, Any]]) -> Iterator[Table]:
    """The comparison for people: a table for each metric of each task, standard decoding and the settings in it.

    A difference whose interval leaves out 0 is bold.
    """
    found: dict[tuple[str, str], Table] = {}
    for entry in entries:
        for metric in entry["metrics"]:
            name = metric["metric"] + (f" ({metric['filter']})" if metric["filter"] != "none" else "")
            title = f"{entry['task']}: {name}, {entry['questions']} questions"
            if (entry["task"], name) not in found:
                found[entry["task"], name] = _empty(title)
                found[entry["task"], name].add_row(STANDARD, _number(metric["standard"], ".3f"))
            table = found[entry["task"], name]
            interval = metric["interval"]
            difference = _number(metric["difference"], "+.3f")
            if interval and not interval[0] <= 0 <= interval[1]:
                difference = f"[bold]{difference}[/]"
            table.add_row(
                escape(entry["setting"]),
                _number(metric["score"], ".3f"),
                difference,
                f"{interval[0]:+.3f}, {interval[1]:+.3f}" if interval else "-",
                _number(metric["p"], ".4f"),
                _percent(entry["answers_changed"]),
                _percent(entry["tokens_changed"]),
            )
    yield from found.values()


def _empty(title: str) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, collapse_padding=True
    )
    table.add_column("setting", overflow="fold")
    for name in ("score", "difference", "95% interval", "McNemar\np", "answers\nchanged", "tokens\nchanged"):
        table.add_column(name, justify="right", min_width=max(map(len, name.split("\n"))), no_wrap=True)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
