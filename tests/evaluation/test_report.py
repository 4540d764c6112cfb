"""Results side by side: scores, differences, changes."""

import io

import pytest
from rich.console import Console

from confident_decoding.evaluation.folder import FolderError
from confident_decoding.evaluation.report import NOT_A_MEAN, build, tables


def generated(question, right, *answers, prompt=None, tokens=None, chosen="none"):
    return {
        "question": question,
        "filter": chosen,
        "prompt": prompt or f"hash {question}",
        "metrics": {"exact_match": float(right)},
        "answer": list(answers),
        "tokens": tokens if tokens is not None else [[ord(letter) for letter in answer] for answer in answers],
    }


def result(*samples, scores=None, better=True):
    mean = sum(sample["metrics"]["exact_match"] for sample in samples) / len(samples)
    return {
        "scores": {"exact_match,none": mean} if scores is None else scores,
        "higher_is_better": {"exact_match": better},
        "samples": list(samples),
    }


def compared(standard, trough, **options):
    results = {("words", "standard"): standard, ("words", "trough"): trough}
    return build(results, ["words"], ["standard", "trough"], options.get("groups", {}), seed=0)


STANDARD = result(generated(0, 0, "abc"), generated(1, 1, "de"), generated(2, 1, "f"), generated(3, 0, ""))
TROUGH = result(generated(0, 1, "abd"), generated(1, 1, "de"), generated(2, 0, "gh"), generated(3, 1, "x"))


def test_one_task_by_hand():
    (entry,) = compared(STANDARD, TROUGH)
    (metric,) = entry.pop("metrics")
    # Tokens: 1 of 3, 0 of 2, 2 of 2, 1 of 1.
    assert entry == {
        "task": "words",
        "setting": "trough",
        "questions": 4,
        "answers_changed": 3 / 4,
        "tokens_changed": 4 / 8,
    }
    assert (metric["standard"], metric["score"], metric["difference"]) == (0.5, 0.75, 0.25)
    assert (metric["gained"], metric["lost"], metric["p"]) == (2, 1, 1.0)
    assert (metric["metric"], metric["filter"], metric["higher_is_better"]) == ("exact_match", "none", True)
    low, high = metric["interval"]
    assert low <= 0.25 <= high
    assert metric["note"] is None


def test_prompts_must_be_the_same():
    other = result(generated(0, 0, "abc", prompt="longer"), *STANDARD["samples"][1:])
    with pytest.raises(FolderError, match=r"'words'.*same prompts"):
        compared(STANDARD, other)
    with pytest.raises(FolderError):
        compared(STANDARD, result(*STANDARD["samples"][:3]))


def test_a_score_that_is_no_mean_has_no_interval():
    scores = {"exact_match,none": 0.123}
    (entry,) = compared(STANDARD, result(*TROUGH["samples"], scores=scores))
    (metric,) = entry["metrics"]
    assert metric["note"] == NOT_A_MEAN
    assert metric["difference"] == pytest.approx(0.123 - 0.5)
    assert metric["interval"] is metric["p"] is metric["gained"] is None


def test_each_filter_has_its_scores():
    def both(right_a, right_b, answer):
        return [
            {**generated(0, right_a, answer), "filter": "strict"},
            {**generated(0, right_b, answer), "filter": "loose"},
        ]

    standard = result(*both(0, 1, "ab"), scores={"exact_match,strict": 0.0, "exact_match,loose": 1.0})
    trough = result(*both(1, 1, "ac"), scores={"exact_match,strict": 1.0, "exact_match,loose": 1.0})
    (entry,) = compared(standard, trough)
    assert (entry["questions"], entry["answers_changed"], entry["tokens_changed"]) == (1, 1.0, 0.5)
    found = [(m["filter"], m["difference"], m["gained"], m["note"]) for m in entry["metrics"]]
    assert found == [("strict", 1.0, 1, None), ("loose", 0.0, 0, None)]


def choice(question, right, answer):
    found = {**generated(question, right), "answer": answer, "loglikelihoods": [-1.0, -2.0]}
    del found["tokens"]
    return found


def test_choices_change_without_tokens():
    (entry,) = compared(result(choice(0, 1, 0), choice(1, 0, 1)), result(choice(0, 1, 0), choice(1, 1, 0)))
    assert (entry["answers_changed"], entry["tokens_changed"]) == (0.5, None)
    (entry,) = compared(result(choice(0, 1, None)), result(choice(0, 1, None)))
    assert (entry["answers_changed"], entry["tokens_changed"]) == (None, None)


def test_a_groups_questions_are_pooled():
    more = result(generated(0, 0, "a"), generated(1, 0, "a"))
    results = {
        ("words", "standard"): STANDARD,
        ("words", "trough"): TROUGH,
        ("more", "standard"): more,
        ("more", "trough"): more,
    }
    *_, pooled = build(results, ["words", "more"], ["standard", "trough"], {"all": ["words", "more"]}, seed=0)
    assert (pooled["task"], pooled["tasks"], pooled["questions"]) == ("all", ["words", "more"], 6)
    (metric,) = pooled["metrics"]
    assert (metric["standard"], metric["score"]) == (pytest.approx(2 / 6), pytest.approx(3 / 6))
    assert pooled["answers_changed"] == 3 / 6


@pytest.mark.parametrize("width", [80, 120])
def test_tables_show_each_number_whole(width):
    entries = compared(STANDARD, TROUGH)
    entries += [{**entry, "setting": "trough-p1,p=0.5,window=12"} for entry in entries]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(*tables(entries), sep="\n")
    text = " ".join(console.export_text().split())
    assert text.startswith("words: exact_match, 4 questions")
    low, high = entries[0]["metrics"][0]["interval"]
    assert "standard 0.500" in text
    assert text.count(f"0.750 +0.250 {low:+.3f}, {high:+.3f} 1.0000 75.0% 50.0%") == 2
    assert "trough-p1,p" in text
