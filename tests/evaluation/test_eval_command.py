"""``confident-decoding eval`` on the embedded model, without a network: two small shipped tasks and 200 sums.

What it measures is checked against transformers (float64 entropies and logits, tests/oracle.py), its scores by
marking the answers again here.
"""

import json
import re

import numpy as np
import pytest
import torch
from conftest import ROOT
from oracle import TransformersOracle
from plugin.checks import TIE, follow

from evaluation.commands import CAPITALS, OPPOSITES, kept

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def evaluated(command, sums, tmp_path_factory):
    """The main run: its output, its folder."""
    folder = tmp_path_factory.mktemp("eval") / "run"
    out, _ = command("--tasks", f"{CAPITALS},{OPPOSITES}", "--tasks", sums[0], "-o", folder, "--json")
    assert (folder / "results.json").read_text() == out
    return out, folder


@pytest.fixture(scope="module")
def extended(evaluated, command, sums):
    """A second run in the same folder: one part is missing, and a setting is added to the generative tasks."""
    _, folder = evaluated
    missing, _ = kept(folder, "sums", "trough")
    before = {path: path.read_bytes() for path in (folder / "answers").iterdir()}
    missing.unlink()
    out, err = command("--tasks", f"{CAPITALS},{sums[0]}", "-s", "trough", "-s", "p=0.5", "-o", folder)
    return {"before": before, "missing": missing, "out": out, "err": err}


@pytest.fixture(scope="module")
def oracle(smollm2):
    return TransformersOracle(smollm2, torch.float32)


@pytest.fixture(scope="module")
def encode(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def test_one_json_document_of_all_tasks_and_settings(evaluated):
    results = json.loads(evaluated[0])
    assert [(entry["task"], entry["setting"], entry["questions"]) for entry in results["results"]] == [
        ("shipped_capitals", "trough", 12),
        ("shipped_opposites", "trough", 12),
        ("sums", "trough", 200),
    ]
    assert results["settings"]["standard"] == {"additional_config": {}, "layers": [29]}
    assert results["settings"]["trough"]["layers"] == list(range(29, 19, -1))


def numbers(result):
    """The first number in each answer, or None, by question."""
    found = {}
    for sample in result["samples"]:
        (text,) = sample["answer"]
        match = re.search("[0-9]+", text)
        found[sample["question"]] = int(match[0]) if match else None
    return [found[question] for question in range(len(found))]


def test_scores_and_differences_are_those_of_the_answers(evaluated, sums):
    out, folder = evaluated
    right, chosen = {}, sums[1]
    for setting in ("standard", "trough"):
        answers = numbers(kept(folder, "sums", setting)[1])
        right[setting] = [answer == a + b for answer, (a, b) in zip(answers, chosen, strict=True)]
    print({setting: sum(values) for setting, values in right.items()})
    assert 0 < sum(right["standard"]) < 200, "too easy or too hard to say anything"
    (entry,) = (entry for entry in json.loads(out)["results"] if entry["task"] == "sums")
    (metric,) = entry["metrics"]
    pairs = list(zip(right["standard"], right["trough"], strict=True))
    assert metric["standard"] == pytest.approx(sum(right["standard"]) / 200)
    assert metric["score"] == pytest.approx(sum(right["trough"]) / 200)
    assert metric["difference"] == pytest.approx((sum(right["trough"]) - sum(right["standard"])) / 200)
    assert (metric["gained"], metric["lost"]) == (pairs.count((False, True)), pairs.count((True, False)))
    assert metric["interval"][0] <= metric["difference"] <= metric["interval"][1]
    assert 0 < entry["answers_changed"] < 1
    assert 0 < entry["tokens_changed"] < 1


@pytest.mark.parametrize(("setting", "window"), [("standard", 0), ("trough", 9)])
def test_answers_are_those_of_the_method(setting, window, evaluated, oracle, encode, sums):
    _, result = kept(evaluated[1], "sums", setting)
    prompts = [encode(f"7 + 5 = 12\n{a} + {b} =") for a, b in sums[1]]
    ties = [
        follow(oracle, prompts[sample["question"]], sample["tokens"][0], window=window)
        for sample in result["samples"][:15]
    ]
    assert sum(tie is not None for tie in ties) <= 1


@pytest.mark.parametrize(("setting", "window"), [("standard", 0), ("trough", 9)])
def test_log_likelihoods_are_of_the_layers_that_the_method_selects(setting, window, evaluated, oracle, encode):
    _, result = kept(evaluated[1], "shipped_opposites", setting)
    docs = [json.loads(line) for line in (ROOT / "tests/evaluation/tasks/opposites.jsonl").open()]
    deep = ties = 0
    for sample in result["samples"][:4]:
        doc = docs[sample["question"]]
        context = f"The opposite of left is right.\nThe opposite of {doc['word']} is"
        for choice, found in zip(doc["choices"], sample["loglikelihoods"], strict=True):
            start, ids = len(encode(context)), encode(f"{context} {choice}")
            rows = oracle.select(ids[:-1], start - 1, window=window)
            deep += sum(depth for _, depth, _, _ in rows)
            values = [logits[token] - np.logaddexp.reduce(logits) for token, (logits, *_) in zip(ids[start:], rows)]  # noqa: B905
            assert len(values) == len(ids) - start == len(rows)
            if abs(sum(values) - found) >= 1e-3:
                assert min(gap for _, _, gap, _ in rows) < TIE
                ties += 1
        best = max(range(3), key=sample["loglikelihoods"].__getitem__)
        assert sample["answer"] == best
        assert sample["metrics"]["acc"] == float(best == doc["label"])
    assert ties <= 1
    assert (deep > 0) == (window > 0), "the method must have selected other layers than the final one"


def test_a_second_run_does_only_what_is_missing_and_gives_the_same_numbers(evaluated, extended):
    """The repeated part came behind others in its engine the first time, and came first the second."""
    assert "3 of 6 parts were finished before." in extended["err"]
    done = re.findall(r"^(.*) done$", extended["err"], re.M)
    assert done == ["shipped_capitals: p=0.5", "sums: trough", "sums: p=0.5"]
    for path, content in extended["before"].items():
        assert path.read_bytes() == content, path.name
    for words in ("sums", "exact_match (number)", "p=0.5", "McNemar", "95% interval"):
        assert words in extended["out"]


def test_p_one_half_mixes_the_two(evaluated, extended, oracle, encode, sums):
    """Each token is one that the final layer, or the selected one, would have chosen."""
    _, folder = evaluated
    chosen = {}
    for setting in ("standard", "trough", "p=0.5"):
        chosen[setting] = [sample["tokens"][0] for sample in kept(folder, "sums", setting)[1]["samples"]]
    assert len({str(tokens) for tokens in chosen.values()}) == 3
    places = [n for n in range(200) if chosen["standard"][n] != chosen["trough"][n]][:12]
    taken = set()
    for n in places:
        a, b = sums[1][n]
        prompt, tokens = encode(f"7 + 5 = 12\n{a} + {b} ="), chosen["p=0.5"][n]
        ids = [*prompt, *tokens[:-1]]
        both = zip(*(oracle.select(ids, len(prompt) - 1, window=window) for window in (0, 9)), strict=True)
        for token, rows in zip(tokens, both, strict=True):
            best = [int(logits.argmax()) for logits, *_ in rows]
            assert token in best or min(margin for _, _, _, margin in rows) < TIE
            if best[0] != best[1]:
                taken.add(best.index(token))
    assert taken == {0, 1}, "both must have been taken"


@pytest.mark.slow
def test_settings_that_share_an_engine_answer_as_in_engines_of_their_own(command, sums, tmp_path):
    texts = ["trough", "trough-p1", "last-m1", "p=0.5,window=4"]
    settings = [word for text in texts for word in ("-s", text)]
    arguments = ["--tasks", f"{CAPITALS},{sums[0]}", "--limit", "12", *settings]
    command(*arguments, "-o", tmp_path / "shared")
    command(*arguments, "-o", tmp_path / "own", "--own-engines")
    answers = {}
    for task in ("shipped_capitals", "sums"):
        for setting in ["standard", *texts]:
            (_, shared), (_, own) = kept(tmp_path / "shared", task, setting), kept(tmp_path / "own", task, setting)
            assert shared == own, f"{task}: {setting}"
            answers[setting] = answers.get(setting, "") + str([sample["answer"] for sample in own["samples"]])
    assert len(set(answers.values())) == len(answers), "too alike to say anything"
