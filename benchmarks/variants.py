"""Other head calls for a running worker: the plain recipe, the final layer alone, a busy host.

No part of the product.
"""

import time

import torch


def selecting_head(worker):
    """The `SelectingHead` of a worker's model."""
    from confident_decoding.plugin.anatomy import logits_processor

    return logits_processor(worker.model_runner.get_model())._apply_head


def replace_call(worker, variant):
    """What is done with packed rows from now on: ``plain`` (`plain_recipe`) or ``final`` (`final_only`)."""
    head = selecting_head(worker)
    instead = {"plain": plain_recipe, "final": final_only}[variant](head)
    selecting, hidden = type(head).__call__, head._hidden

    def call(head, *args):
        return instead(*args) if args[1].shape[-1] != hidden else selecting(head, *args)

    type(head).__call__ = call


def delay_head(worker, ms):
    """Keep the host busy for so long in each head call of a stock engine: is its time on the critical path?"""
    from confident_decoding.plugin.anatomy import logits_processor

    processor = logits_processor(worker.model_runner.get_model())
    stock = type(processor)._apply_head.__get__(processor)

    def delayed(*args):
        end = time.perf_counter() + ms / 1000
        while time.perf_counter() < end:
            pass
        return stock(*args)

    processor._apply_head = delayed


def plain_recipe(head):
    """The documented recipe, written plainly: every candidate's logits in full, softmax in fp32, entropy, pick.

    Under tensor parallelism all candidates' logits are gathered, as a recipe that wants probabilities must.
    """

    def call(lm_head, packed, bias):
        n, processor = len(head._plan.depths), head._processor
        states = packed.view(len(packed), n, -1)
        every = [states[:, 0], *(head._final_state(states[:, d].contiguous()) for d in range(1, n))]
        logits = torch.stack([head._stock(lm_head, state.contiguous(), bias) for state in every])
        whole = logits
        if lm_head.tp_size > 1:
            from vllm.distributed import tensor_model_parallel_all_gather

            whole = tensor_model_parallel_all_gather(logits)
        probabilities = torch.softmax(whole[..., : processor.org_vocab_size].float(), -1)
        entropies = -(probabilities * torch.log(probabilities + 1e-10)).sum(-1)
        descends = (entropies[1:] < entropies[:-1]).long().cumprod(0).sum(0)
        return logits.gather(0, descends[None, :, None].expand(1, -1, logits.shape[-1]))[0]

    return call


def final_only(head):
    """The final layer's logits and no scan: what capturing and packing cost."""

    def call(lm_head, packed, bias):
        return head._stock(lm_head, packed[:, : head._hidden].contiguous(), bias)

    return call
