"""Models that vLLM runs and that the plugin must refuse: registered in the driver's process."""

from odd_architectures import ODD
from vllm import ModelRegistry
from vllm.model_executor.models.llama import LlamaForCausalLM, LlamaModel


class RescaledForCausalLM(LlamaForCausalLM):
    """Rescales after the norm, inside compute_logits."""

    def compute_logits(self, hidden_states):
        return super().compute_logits(hidden_states / 2)


class RescaledForwardForCausalLM(LlamaForCausalLM):
    """Rescales after the norm, in the top-level forward (as MiniCPM does)."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        return (output[0] / 2, output[1]) if isinstance(output, tuple) else output / 2


class TwoNormsModel(LlamaModel):
    """Its final state is not its norm of the last stream."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        return (output[0] * 2, output[1]) if isinstance(output, tuple) else output * 2


class TwoNormsForCausalLM(LlamaForCausalLM):
    def _init_model(self, vllm_config, prefix="", **kwargs):
        return TwoNormsModel(vllm_config=vllm_config, prefix=prefix)


class CappedOutsideForCausalLM(LlamaForCausalLM):
    """Caps the logits outside the LogitsProcessor."""

    def compute_logits(self, hidden_states):
        return super().compute_logits(hidden_states).clamp(-1, 1)


class ForgetfulModel(LlamaModel):
    """Inherits the capture's attribute and overrides the forward without it (as MiMo does)."""

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        hidden, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
        return self.norm(hidden, residual)[0]


class ForgetfulForCausalLM(LlamaForCausalLM):
    def _init_model(self, vllm_config, prefix="", **kwargs):
        return ForgetfulModel(vllm_config=vllm_config, prefix=prefix)


class LyingModel(LlamaModel):
    """Mentions the capture, and returns too few states."""

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        output = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        # The startup proof calls with embeddings: only the serving calls are lied to.
        lies = self.aux_hidden_state_layers and inputs_embeds is None
        return (output[0], output[1][:1]) if lies else output


class LyingForCausalLM(LlamaForCausalLM):
    def _init_model(self, vllm_config, prefix="", **kwargs):
        return LyingModel(vllm_config=vllm_config, prefix=prefix)


for name in ODD:
    ModelRegistry.register_model(name, globals()[name])
