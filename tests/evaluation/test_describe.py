"""What is found out about tasks before an engine starts."""

import json
import shutil

import pytest

from confident_decoding.engines.options import WrongUseError
from confident_decoding.evaluation.describe import describe, given, load_tasks

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """``written(name, more="", questions=3)``: a task file with its data."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(name, more="", questions=3):
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(questions)))
        path = tmp_path / f"{name}.yaml"
        path.write_text(TASK.format(name=name, data=data, more=more))
        return str(path)

    return write


@pytest.fixture
def model(tmp_path):
    """A folder that passes for a model until it is opened."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return str(tmp_path / "model")


def refusal(model, tasks, **options):
    arguments = {
        "options": "",
        "model_args": {},
        "include_path": [],
        "limit": None,
        "allow_unsafe_code": False,
        **options,
    }
    with pytest.raises(WrongUseError) as refused:
        describe(lambda *_, **__: None, model, tasks=tasks, **arguments)
    return str(refused.value)


def test_tasks_that_run_code_need_permission(written, model):
    path = written("codes", "unsafe_code: true")
    assert "'codes' runs code" in refusal(model, [path])
    assert "--allow-unsafe-code" in refusal(model, [path])


def test_a_task_without_questions_is_refused(written, model):
    assert refusal(model, [written("nothing", questions=1)], limit=0) == "task 'nothing' has no questions."


def test_files_that_are_missing_or_no_tasks_are_named(written, model, tmp_path):
    assert refusal(model, ["nowhere.yaml"]) == "there is no task file nowhere.yaml."
    (tmp_path / "bad.yaml").write_text("task: [")
    assert "bad.yaml cannot be loaded" in refusal(model, [str(tmp_path / "bad.yaml")])
    path = written("lost")
    (tmp_path / "lost.jsonl").unlink()
    assert "lost.yaml cannot be loaded" in refusal(model, [path])
    assert "lost.jsonl" in refusal(model, [path])


def test_names_patterns_files_and_groups(written, tmp_path):
    one, _, other = written("mine_one"), written("mine_two"), written("other")
    assert list(load_tasks([one], [])["tasks"]) == ["mine_one"]
    written("third"), written("fourth")
    (tmp_path / "group.yaml").write_text("group: all_of_them\ntask: [third, fourth]\n")
    loaded = load_tasks(["mine_*", other, "all_of_them"], [str(tmp_path)])
    assert sorted(loaded["tasks"]) == ["fourth", "mine_one", "mine_two", "other", "third"]
    assert [len(task.eval_docs) for task in loaded["tasks"].values()] == [3] * 5
    assert [task.task_name for task in loaded["groups"]["all_of_them"].get_all_tasks()] == ["third", "fourth"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-model-length 3", "vLLM's engine does not know --max-model-length 3"),
        ("--additional_config {}", "--additional-config belongs elsewhere: use --setting"),
        ("--seed 0", "--seed belongs elsewhere: use --seed of this command"),
        ("-pp 2", "does not fit onto the last pipeline stage"),
        ("--data-parallel-size 2", "--tensor-parallel-size spreads it over GPUs"),
    ],
)
def test_options_of_vllm_that_cannot_be(options, message, written, model):
    assert message in refusal(model, [written("mine")], options=options)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("max_model_len", "options of vLLM belong into --vllm"),
        ("max_length", "options of vLLM belong into --vllm"),
        ("add_bos", "lm-eval's vllm model has no 'add_bos'; it has add_bos_token, "),
    ],
)
def test_arguments_of_lm_evals_model_that_cannot_be(key, message, written, model):
    assert message in refusal(model, [written("mine")], model_args={key: 1})


def test_what_options_ask_for_is_what_differs_from_vllms_defaults():
    asked = given("m", "--max_model_len=64 --dtype auto --enforce-eager")
    assert asked == {"max_model_len": 64, "enforce_eager": True}
    assert given("m", "") == {}


def facts(smollm2, path, limit=None):
    reports = []
    describe(
        lambda event, **values: reports.append((event, values)),
        smollm2,
        options="--dtype float32",
        model_args={},
        tasks=[path],
        include_path=[],
        limit=limit,
        allow_unsafe_code=False,
    )
    ((event, values),) = reports
    assert event == "facts"
    return values


@pytest.mark.engine
def test_facts_follow_the_data_the_limit_and_the_models_files(written, smollm2, tmp_path):
    path = written("mine")
    first = facts(smollm2, path)
    assert first["layers"] == 30
    assert first["options"] == {"dtype": "float32"}
    assert first["tasks"]["mine"]["questions"] == 3
    assert first["tasks"]["mine"]["output_type"] == "generate_until"
    assert facts(smollm2, path) == first
    limited = facts(smollm2, path, limit=2)
    assert limited["tasks"]["mine"]["questions"] == 2
    written("mine", questions=4)
    more = facts(smollm2, path)
    assert more["tasks"]["mine"]["questions"] == 4
    assert len({found["tasks"]["mine"]["digest"] for found in (first, limited, more)}) == 3
    assert facts(smollm2, path, limit=2)["tasks"] == limited["tasks"], "the same questions are asked"
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy2(f"{smollm2}/{name}", copy)
    assert facts(str(copy), path)["files"] != first["files"]
