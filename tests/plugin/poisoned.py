"""Engines in which the test makes candidates of one request non-finite; run as a process by test_non_finite.py.

    python tests/plugin/poisoned.py JOBS.json OUT.json

A job is ``{"engine": {LLM arguments}, "calls": [{"prompts", "sampling", "poison": [prompt, [places], value]}]}``: in
the rows of that prompt's request the states at those places of a packed row hold the value ("nan", "inf", "-inf").
"""

import contextlib
import json
import sys
from pathlib import Path

from actions import plain


@contextlib.contextmanager
def poisoned(llm, prompt, places, value):
    """Rows reach the plugin's head with these states; how many is told."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    processor = runner.model.logits_processor
    head, hidden = processor._apply_head, llm.llm_engine.vllm_config.model_config.get_hidden_size()
    count = [0]

    def apply(lm_head, states, bias):
        if states.shape[1] > hidden:
            states = states.clone()
            for row, request in enumerate(runner.input_batch.req_ids):
                if list(runner.requests[request].prompt_token_ids) == prompt:
                    count[0] += 1
                    for place in places:
                        # One element of a state is enough, as one overflow is.
                        states[row, place * hidden + 3] = float(value)
        return head(lm_head, states, bias)

    processor._apply_head = apply
    try:
        yield count
    finally:
        processor._apply_head = head


def run(job):
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(**job["engine"])
    results = []
    for call in job["calls"]:
        sampling = call["sampling"]
        params = [SamplingParams(**s) for s in sampling] if isinstance(sampling, list) else SamplingParams(**sampling)
        prompts = [{"prompt_token_ids": ids} for ids in call["prompts"]]
        with poisoned(llm, *call["poison"]) if "poison" in call else contextlib.nullcontext([0]) as count:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        results.append(
            {
                "tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "logprobs": [plain(o.outputs[0].logprobs) for o in outputs],
                "poisoned_rows": count[0],
            }
        )
    del llm
    cleanup_dist_env_and_memory()
    return results


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps([run(job) for job in json.loads(Path(sys.argv[1]).read_text())]))
