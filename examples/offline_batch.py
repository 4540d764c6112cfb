"""A batch without a server: ``python offline_batch.py MODEL``."""

import sys

from vllm import LLM, SamplingParams


def main():
    llm = LLM(
        sys.argv[1],
        additional_config={"enable_multi_layer_entropy_selection": True, "trough_max_backtrack_layers": 10},
        max_model_len=512,
        enforce_eager=True,  # starts faster; leave it out to serve
    )
    prompts = ["The capital of France is", "Water boils at"]
    kinds = {"confident": None, "standard": {"confident_p": 0.0}}
    for kind, arguments in kinds.items():
        sampling = SamplingParams(temperature=0, max_tokens=16, extra_args=arguments)
        for output in llm.generate(prompts, sampling, use_tqdm=False):
            print(f"{kind:10} {output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":  # vLLM may start processes of its own
    main()
