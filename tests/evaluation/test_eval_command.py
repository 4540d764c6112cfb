"""``confident-decoding eval`` on the embedded model, without a network: two small shipped tasks and 200 sums.

What it measures is checked against transformers (float64 entropies and logits, tests/oracle.py), its scores by
marking the answers again here.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ENGINE_ENV, ROOT
from oracle import TransformersOracle
from plugin.checks import TIE, follow

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

CAPITALS, OPPOSITES = "tests/evaluation/tasks/capitals.yaml", "tests/evaluation/tasks/opposites.yaml"
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512}
SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "2 + 2 = 4\\n7 + 5 = 12\\n{{{{question}}}} ="
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6}}
filter_list:
  - name: number
    filter: [{{function: regex, regex_pattern: "([0-9]+)"}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
ENV = {
    # No HF_HUB_OFFLINE: whatever tried to reach a network would fail here.
    **{key: value for key, value in ENGINE_ENV.items() if key not in ("HF_HUB_OFFLINE",)},
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
}


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A task file of 200 sums of numbers up to 20, and the right answers."""
    folder = tmp_path_factory.mktemp("sums")
    pairs = list(itertools.product(range(1, 21), range(1, 21)))
    chosen = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[:200]]
    lines = [json.dumps({"question": f"{a} + {b}", "answer": str(a + b)}) for a, b in chosen]
    (folder / "sums.jsonl").write_text("\n".join(lines))
    (folder / "sums.yaml").write_text(SUMS.format(data=folder / "sums.jsonl"))
    return str(folder / "sums.yaml"), chosen


@pytest.fixture(scope="module")
def command(smollm2, tmp_path_factory):
    """``command(*arguments)``: a finished run of the command line."""
    cache = tmp_path_factory.mktemp("cache")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "VLLM_"))}
    env |= {**ENV, "HF_DATASETS_CACHE": str(cache)}

    def start(*arguments, **options):
        code = "from confident_decoding.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, "eval", smollm2, *map(str, arguments), "--model-args", json.dumps(ENGINE)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(*arguments, status=0, **options):
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=900)
        assert process.returncode == status, err
        return out, err

    run.start = start
    return run


@pytest.fixture(scope="module")
def evaluated(command, sums, tmp_path_factory):
    """The main run: its output, its folder."""
    folder = tmp_path_factory.mktemp("eval") / "run"
    arguments = ["--tasks", f"{CAPITALS},{OPPOSITES}", "--tasks", sums[0], "-s", "trough", "-s", "p=0.5", "-o", folder]
    out, err = command(*arguments, "--json")
    return {"arguments": arguments, "out": out, "err": err, "folder": folder}


def kept(folder, task, setting):
    (path,) = (folder / "answers").glob(f"{task}--{setting}--*.json")
    return path, json.loads(path.read_text())["result"]


@pytest.fixture(scope="module")
def oracle(smollm2):
    return TransformersOracle(smollm2, torch.float32)


@pytest.fixture(scope="module")
def encode(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def test_one_json_document_of_all_tasks_and_settings(evaluated):
    results = json.loads(evaluated["out"])
    assert json.loads((evaluated["folder"] / "results.json").read_text()) == results
    assert [(entry["task"], entry["setting"], entry["questions"]) for entry in results["results"]] == [
        (task, setting, questions)
        for task, questions in (("shipped_capitals", 12), ("shipped_opposites", 12), ("sums", 200))
        for setting in ("trough", "p=0.5")
    ]
    assert results["settings"]["standard"] == {"additional_config": {}, "layers": [29]}
    assert results["settings"]["p=0.5"]["layers"] == list(range(29, 19, -1))


def numbers(result):
    """The first number in each answer, or None, by question."""
    found = {}
    for sample in result["samples"]:
        (text,) = sample["answer"]
        match = re.search("[0-9]+", text)
        found[sample["question"]] = int(match[0]) if match else None
    return [found[question] for question in range(len(found))]


def test_scores_and_differences_are_those_of_the_answers(evaluated, sums):
    results = json.loads(evaluated["out"])["results"]
    right = {}
    for setting in ("standard", "trough", "p=0.5"):
        answers = numbers(kept(evaluated["folder"], "sums", setting)[1])
        right[setting] = [answer == a + b for answer, (a, b) in zip(answers, sums[1], strict=True)]
    print({setting: sum(values) for setting, values in right.items()})
    assert 0 < sum(right["standard"]) < 200, "too easy or too hard to say anything"
    for entry in results:
        if entry["task"] != "sums":
            continue
        (metric,) = entry["metrics"]
        mine = right[entry["setting"]]
        assert metric["standard"] == pytest.approx(sum(right["standard"]) / 200)
        assert metric["score"] == pytest.approx(sum(mine) / 200)
        assert metric["difference"] == pytest.approx((sum(mine) - sum(right["standard"])) / 200)
        assert metric["gained"] == sum(x and not y for x, y in zip(mine, right["standard"], strict=True))
        assert metric["lost"] == sum(y and not x for x, y in zip(mine, right["standard"], strict=True))
        assert metric["interval"][0] <= metric["difference"] <= metric["interval"][1]
        assert 0 < entry["answers_changed"] <= 1
        assert 0 < entry["tokens_changed"] < 1


@pytest.mark.parametrize(("setting", "window"), [("standard", 0), ("trough", 9)])
def test_answers_are_those_of_the_method(setting, window, evaluated, oracle, encode, sums):
    _, result = kept(evaluated["folder"], "sums", setting)
    prompts = [encode(f"2 + 2 = 4\n7 + 5 = 12\n{a} + {b} =") for a, b in sums[1]]
    ties = [
        follow(oracle, prompts[sample["question"]], sample["tokens"][0], window=window)
        for sample in result["samples"][:15]
    ]
    assert sum(tie is not None for tie in ties) <= 1


@pytest.mark.parametrize(("setting", "window"), [("standard", 0), ("trough", 9)])
def test_log_likelihoods_are_of_the_layers_that_the_method_selects(setting, window, evaluated, oracle, encode):
    _, result = kept(evaluated["folder"], "shipped_opposites", setting)
    docs = [json.loads(line) for line in (ROOT / "tests/evaluation/tasks/opposites.jsonl").open()]
    deep = ties = 0
    for sample in result["samples"][:5]:
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


def test_p_one_half_mixes(evaluated):
    for task in ("sums", "shipped_opposites"):
        found = {
            setting: [sample.get("loglikelihoods", sample["answer"]) for sample in result["samples"]]
            for setting in ("standard", "trough", "p=0.5")
            for result in [kept(evaluated["folder"], task, setting)[1]]
        }
        assert len({str(answers) for answers in found.values()}) == 3, task


def test_a_second_run_does_only_what_is_missing_and_gives_the_same_numbers(evaluated, command):
    """Of a unit that mixes, behind other units in its engine the first time and alone in it the second."""
    folder = evaluated["folder"]
    path, _ = kept(folder, "sums", "p=0.5")
    files = {path: path.read_bytes() for path in folder.rglob("*.json")}
    path.unlink()
    out, err = command(*evaluated["arguments"])
    assert "8 of 9 parts were finished before." in err
    assert re.findall(r"^(.*) done$", err, re.M) == ["sums: p=0.5"]
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == files
    for words in ("sums", "exact_match (number)", "p=0.5", "McNemar p", "tokens changed"):
        assert words in out


@pytest.mark.slow
def test_settings_that_share_an_engine_answer_as_in_engines_of_their_own(command, sums, tmp_path):
    texts = ["trough", "trough-p1", "trough-m1", "last-m1", "window=3", "p=0.5,window=4", "min_entropy=0.5"]
    settings = [word for text in texts for word in ("-s", text)]
    arguments = ["--tasks", f"{CAPITALS},{sums[0]}", "--limit", "25", *settings]
    command(*arguments, "-o", tmp_path / "shared")
    command(*arguments, "-o", tmp_path / "own", "--own-engines")
    answers = {}
    for task in ("shipped_capitals", "sums"):
        for setting in ["standard", *texts]:
            (_, shared), (_, own) = kept(tmp_path / "shared", task, setting), kept(tmp_path / "own", task, setting)
            assert shared == own, f"{task}: {setting}"
            answers[setting] = answers.get(setting, "") + str([sample["answer"] for sample in own["samples"]])
    assert len(set(answers.values())) >= len(texts), "too alike to say anything"


@pytest.mark.slow
def test_interrupted_on_a_full_disk_and_finished_it_gives_the_same_numbers(command, evaluated, sums, tmp_path):
    import resource

    folder = tmp_path / "run"
    arguments = ["--tasks", f"{CAPITALS},{OPPOSITES}", "--tasks", sums[0], "-s", "trough", "-s", "p=0.5", "-o", folder]

    process = command.start(*arguments)
    for line in process.stderr:
        if "done" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Finished parts are kept" in err
    assert "Traceback" not in err
    finished = sorted((folder / "answers").iterdir())
    assert len(finished) >= 1
    assert not (folder / "results.json").exists()

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    _, err = command(*arguments, status=1, preexec_fn=full)
    assert err.count("error:") == 1
    assert "cannot write" in err
    assert "sums--standard" in err.replace("\n", "")
    assert "Traceback" not in err
    names = sorted(path.name for path in folder.rglob("*"))
    assert not [name for name in names if "partial" in name]
    assert not [name for name in names if name.startswith("sums")]
    assert {path.name for path in finished} < set(names)

    command(*arguments)
    for path in evaluated["folder"].rglob("*.json"):
        assert (folder / path.relative_to(evaluated["folder"])).read_bytes() == path.read_bytes(), path.name
