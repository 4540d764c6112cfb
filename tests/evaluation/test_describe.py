"""What is found out about tasks before an engine starts."""

import json
import shutil

import pytest

from confident_decoding.evaluation.describe import describe, load_tasks
from confident_decoding.evaluation.protocol import RefusedError

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
    arguments = {"model_args": {}, "include_path": [], "limit": None, "allow_unsafe_code": False, **options}
    with pytest.raises(RefusedError) as refused:
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


def facts(smollm2, path, limit=None):
    reports = []
    describe(
        lambda event, **values: reports.append((event, values)),
        smollm2,
        model_args={"dtype": "float32"},
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
