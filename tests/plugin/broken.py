"""Engines of a vLLM in which something is not as we know it; run as a process by test_broken_vllm.py.

    python tests/plugin/broken.py CHECKPOINT OUT.json CASE ...

Each case is changed, started with the switch on, asked, and changed back. The result is what a user gets to see.
"""

import gc
import json
import sys
from contextlib import contextmanager
from pathlib import Path

from driver import Lines, refusal

ON = {"enable_multi_layer_entropy_selection": True}
ENGINE = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "enforce_eager": True,
}
SAMPLING = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
PROMPT = [5, 6, 7]


@contextmanager
def put(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def without(owner, name):
    before = vars(owner)[name]
    delattr(owner, name)
    try:
        yield
    finally:
        setattr(owner, name, before)


def version(number):
    import vllm

    return put(vllm, "__version__", number)


def head():
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    return without(LogitsProcessor, "_apply_head")


def runner():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    execute = GPUModelRunner.execute_model

    def execute_model(self, work, *args, **kwargs):
        return execute(self, work, *args, **kwargs)

    return put(GPUModelRunner, "execute_model", execute_model)


def capture():
    from vllm.model_executor.models.llama import LlamaModel

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        raise NotImplementedError

    return put(LlamaModel, "forward", forward)


def front_end():
    """Before the plugin is registered: it meets the changed class."""
    from vllm.v1.engine.input_processor import InputProcessor

    process = InputProcessor.process_inputs

    def process_inputs(self, number, *args, **kwargs):
        return process(self, number, *args, **kwargs)

    return put(InputProcessor, "process_inputs", process_inputs)


CASES = {
    "too old": lambda: version("0.25.1"),
    "newer": lambda: version("0.34.0"),
    "head": head,
    "runner": runner,
    "capture": capture,
    "front end": front_end,
}


def run(model, case, lines, config):
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    from confident_decoding.plugin import runner as hooks

    hooks.problem.cache_clear()  # a process meets one vLLM
    lines.lines.clear()
    result = {"tokens": None, "error": None, "refusal": None}
    with CASES[case]():
        try:
            llm = LLM(model=model, additional_config=config, **ENGINE)
            out = llm.generate([{"prompt_token_ids": PROMPT}], SamplingParams(**SAMPLING), use_tqdm=False)
            result["tokens"] = list(out[0].outputs[0].token_ids)
            result["refusal"] = refusal(llm, PROMPT, {**SAMPLING, "extra_args": {"confident_p": 0}})
            del llm
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        cleanup_dist_env_and_memory()
        gc.collect()
    return {**result, "lines": list(lines.lines)}


def main():
    model, out, *cases = sys.argv[1:]
    lines = Lines()
    results = {}
    for case in cases:
        results[case] = run(model, case, lines, ON)
    if "front end" in cases:
        results["bad configuration"] = run(model, "front end", lines, {**ON, "p": 2})
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
