"""A worker extension with the numbering of vLLM 0.26 to 0.29: a pipeline stage's layers count from its own first."""

from itertools import islice


def count_from_the_stages_own_first():
    """Llama's loop as it was."""
    from vllm.distributed import get_pp_group
    from vllm.model_executor.models.llama import LlamaModel
    from vllm.sequence import IntermediateTensors

    def forward(self, input_ids, positions, intermediate_tensors, inputs_embeds=None):
        if get_pp_group().is_first_rank:
            stream, residual = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds, None
        else:
            stream, residual = intermediate_tensors["hidden_states"], intermediate_tensors["residual"]
        captured = self._maybe_add_hidden_state([], 0, stream, residual)
        for number, layer in enumerate(islice(self.layers, self.start_layer, self.end_layer), start=1):
            stream, residual = layer(positions, stream, residual)
            self._maybe_add_hidden_state(captured, number, stream, residual)
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": stream, "residual": residual})
        final, _ = self.norm(stream, residual)
        return (final, captured) if captured else final

    LlamaModel.forward = forward


class CountedFromOwnFirst:
    """For ``worker_extension_cls``, which every worker imports before it builds its model."""


count_from_the_stages_own_first()
