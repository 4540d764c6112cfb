"""What the driver can do with an engine beside plain requests; arguments and results are JSON."""

import json
from pathlib import Path


def plain(logprobs):
    """vLLM's logprobs as ``[[[token, value], ...], ...]``; floats survive JSON exactly."""
    if logprobs is None:
        return None
    return [None if at is None else [[t, v.logprob] for t, v in at.items()] for at in logprobs]


def sampling_params(options):
    """vLLM's object; ``structured_outputs`` as its fields, and ids as strings, as JSON has them."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    options = dict(options)
    if "structured_outputs" in options:
        options["structured_outputs"] = StructuredOutputsParams(**options["structured_outputs"])
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    return SamplingParams(**options)


def answer(outputs):
    """Tokens, texts and logprobs of requests, sample by sample."""
    return {
        "tokens": [[list(c.token_ids) for c in o.outputs] for o in outputs],
        "texts": [[c.text for c in o.outputs] for o in outputs],
        "finished": [[[c.finish_reason, c.stop_reason] for c in o.outputs] for o in outputs],
        "logprobs": [[plain(c.logprobs) for c in o.outputs] for o in outputs],
        "prompt_logprobs": [plain(o.prompt_logprobs) for o in outputs],
    }


def generate(llm, prompts, sampling, **more):
    """Requests of one batch; ``sampling`` is for all, or one for each."""
    params = list(map(sampling_params, sampling)) if isinstance(sampling, list) else sampling_params(sampling)
    return answer(llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False, **more))


def stream(llm, prompts, sampling, abort=(), after=0):
    """Deltas of each request, step by step; requests of these numbers are aborted after so many steps."""
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    deltas = [[] for _ in prompts]
    for number, (ids, options) in enumerate(zip(prompts, sampling, strict=True)):
        params = sampling_params(options)
        params.output_kind = RequestOutputKind.DELTA
        engine.add_request(f"stream-{number}", {"prompt_token_ids": ids}, params)
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            deltas[int(output.request_id.split("-")[1])].append(
                [[c.index, list(c.token_ids), c.text, plain(c.logprobs)] for c in output.outputs]
            )
        steps += 1
        if steps == after:
            engine.abort_request([f"stream-{number}" for number in abort])
    return {"deltas": deltas, "steps": steps}


def beams(llm, prompts, width, max_tokens):
    """``[tokens that were generated, cumulated logprob]`` of each beam, best first."""
    from vllm.sampling_params import BeamSearchParams

    params = BeamSearchParams(beam_width=width, max_tokens=max_tokens, ignore_eos=True)
    found = llm.beam_search([{"prompt_token_ids": ids} for ids in prompts], params)
    return [
        [[list(beam.tokens[len(ids) :]), beam.cum_logprob] for beam in output.sequences]
        for ids, output in zip(prompts, found, strict=True)
    ]


NUMBERS = {}
"""vLLM knows an adapter by its number: one for each path, as long as this process lives."""


def adapter(path):
    """The LoRA request of an adapter's folder."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(Path(path).name, NUMBERS.setdefault(path, 1 + len(NUMBERS)), path)


def remove_adapter(llm, path):
    """Whether vLLM had it."""
    return llm.llm_engine.remove_lora(adapter(path).lora_int_id)


def plain_head_calls(llm):
    """How often each rank's `SelectingHead` has passed plain rows on; where the selection is off, never."""
    return llm.apply_model(_plain_head_calls)


def _plain_head_calls(model):
    return getattr(model.logits_processor.base_layer._apply_head, "stock_calls", 0)


def on_ranks(llm, function):
    """What a function of `ranks` returns on each rank."""
    import ranks

    return llm.collective_rpc(getattr(ranks, function))


def reload_weights(llm, path):
    """The weights of another checkpoint, in place, through vLLM's own `reload_weights`."""
    llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    llm.reset_prefix_cache()


def load_tensors(llm, path, names):
    """These tensors of another checkpoint alone, through the model's `load_weights`, as trainers push them."""
    from safetensors.torch import load_file

    tensors = load_file(f"{path}/model.safetensors")
    changed = [(name, tensor) for name, tensor in tensors.items() if any(part in name for part in names)]
    llm.apply_model(lambda model: model.load_weights(iter(changed)))
    llm.reset_prefix_cache()
    return [name for name, _ in changed]


def change_configuration(llm, keys):
    """Write to the dictionary that the engine was started with, as nobody should."""
    llm.llm_engine.vllm_config.additional_config.update(keys)
    return json.loads(json.dumps(llm.llm_engine.vllm_config.additional_config))


def sleep_and_wake(llm, level):
    """What vLLM says to that."""
    import logging

    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    listener = Listener()
    logging.getLogger("vllm").addHandler(listener)
    try:
        llm.sleep(level=level)
        llm.wake_up()
    finally:
        logging.getLogger("vllm").removeHandler(listener)
    return said


def setting(llm, path):
    """An attribute of the engine's configuration, by its dotted path."""
    value = llm.llm_engine.vllm_config
    for name in path.split("."):
        value = getattr(value, name)
    return value
