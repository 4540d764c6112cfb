"""An engine whose processes are forked; run as a process by test_crashes.py.

    python tests/plugin/forked.py CHECKPOINT OUT.json

vLLM's CPU platform always spawns, whatever ``VLLM_WORKER_MULTIPROC_METHOD`` says; here the test says fork after it.
"""

import json
import os
import sys
from pathlib import Path


def fork_on_the_cpu():
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, vllm_config):
        check(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def main():
    fork_on_the_cpu()
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=sys.argv[1],
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=4,
        enforce_eager=True,
        tensor_parallel_size=2,
        worker_extension_cls="load.probe.Probe",
        additional_config={"enable_multi_layer_entropy_selection": True},
    )
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(os.environ["PROMPTS"])]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    result = {"hooks": llm.collective_rpc("hooks"), "answers": [list(o.outputs[0].token_ids) for o in outputs]}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
