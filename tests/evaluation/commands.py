"""``confident-decoding eval`` as a user runs it, on the embedded model and tasks of the tests."""

import json

from conftest import ENGINE_ENV

CAPITALS, OPPOSITES = "tests/evaluation/tasks/capitals.yaml", "tests/evaluation/tasks/opposites.yaml"
ENGINE = "--dtype float32 --enforce-eager --max-model-len 512"
SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "7 + 5 = 12\\n{{{{question}}}} ="
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 4}}
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


def kept(folder, task, setting):
    (path,) = (folder / "answers").glob(f"{task}--{setting}--*.json")
    return path, json.loads(path.read_text())["result"]
