"""Install the hooks on a loaded model, after proving that its logits are what we model."""

import logging
from typing import Any

import torch
from torch import Tensor, nn

import confident_decoding
from confident_decoding import stats
from confident_decoding.config import ConfidentDecodingConfig, ConfigError, SelectionPlan
from confident_decoding.plugin.capture import language_model, switch_on_capture
from confident_decoding.plugin.compat import version_problem
from confident_decoding.plugin.cost import kv_bytes_per_token
from confident_decoding.plugin.head import COUNTERS, SelectingHead, sampled_distribution
from confident_decoding.plugin.pack import swap_class

logger = logging.getLogger("vllm.confident_decoding")


def install(model: nn.Module, vllm_config: Any, config: ConfidentDecodingConfig, plan: SelectionPlan) -> None:
    """Hook one loaded model instance; nothing of its class or of other models is touched.

    Raises:
        ConfigError: The architecture is not one that provably works.
    """
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    model_config = vllm_config.model_config
    reports = get_tensor_model_parallel_rank() == 0
    processor = find_logits_processor(model)
    norm = switch_on_capture(model, plan)
    hidden = model_config.get_hidden_size()
    head = SelectingHead(
        processor,
        norm,
        hidden=hidden,
        plan=plan,
        seed=model_config.seed or 0,
        select_method=config.select_method,
        log_interval=config.trough_log_interval,
        reports=reports,
    )
    processor._apply_head = head
    prove_logits(model, processor, head, hidden, model_config.dtype)
    device = next(model.parameters()).device
    # A buffer, because sleep level 2 discards plain allocations; not persistent: it is no weight.
    processor.register_buffer(COUNTERS, stats.new_counters(device), persistent=False)
    swap_class(model, len(plan.depths) - 1, head)
    if reports:
        _announce(vllm_config, config, plan, hidden)


def find_logits_processor(model: nn.Module) -> Any:
    """The language model's ``LogitsProcessor``.

    Raises:
        ConfigError: There is none, or it takes logits as input.
    """
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    processor = getattr(language_model(model), "logits_processor", None) or getattr(model, "logits_processor", None)
    if not isinstance(processor, LogitsProcessor) or processor.logits_as_input:
        raise ConfigError(
            f"confident-decoding cannot run {type(model).__name__}: it has no LogitsProcessor that applies an output "
            "head. Serve it with enable_multi_layer_entropy_selection=false."
        )
    return processor


class _Recorder:
    """Passes head calls on and remembers their arguments."""

    def __init__(self, head: SelectingHead) -> None:
        self.head = head
        self.calls: list[tuple[Any, Tensor | None]] = []

    def __call__(self, lm_head: Any, hidden_states: Tensor, embedding_bias: Tensor | None) -> Tensor:
        self.calls.append((lm_head, embedding_bias))
        return self.head(lm_head, hidden_states, embedding_bias)


@torch.inference_mode()
def prove_logits(model: Any, processor: Any, head: SelectingHead, hidden: int, dtype: torch.dtype) -> None:
    """Check on two rows that stock logits equal head, gather, trim, cap and scale, as we model them.

    Models that rescale after the norm, cap elsewhere or norm inside ``compute_logits`` fail here.

    Raises:
        ConfigError: They differ, or the head is not called once with plain rows.
    """
    device = next(model.parameters()).device
    generator = torch.Generator("cpu").manual_seed(0)
    states = torch.randn(2, hidden, generator=generator).to(device, dtype)
    recorder = _Recorder(head)
    processor._apply_head = recorder
    try:
        expected = model.compute_logits(states)
    finally:
        processor._apply_head = head
    if len(recorder.calls) == 1 and head.stock_calls == 1:
        lm_head, bias = recorder.calls[0]
        modelled = head(lm_head, states, bias)
        if lm_head.tp_size > 1:
            from vllm.distributed import tensor_model_parallel_all_gather

            modelled = tensor_model_parallel_all_gather(modelled)
        modelled = sampled_distribution(processor, modelled[..., : processor.org_vocab_size])
        if expected is not None and expected.shape == modelled.shape and torch.equal(expected, modelled):
            return
    raise ConfigError(
        f"confident-decoding cannot run {type(model).__name__}: its compute_logits is not a plain output head (with "
        "soft cap and scale) on the normed final state, so the candidates' logits cannot be computed faithfully. "
        "Serve it with enable_multi_layer_entropy_selection=false."
    )


def _announce(vllm_config: Any, config: ConfidentDecodingConfig, plan: SelectionPlan, hidden: int) -> None:
    import vllm

    _, warning = version_problem(vllm.__version__)
    if warning:
        logger.warning("confident-decoding: %s", warning)
    if plan.selects_nothing:
        logger.warning(
            "confident-decoding: these settings leave one candidate, the final layer, so nothing will be selected. "
            "Set trough_max_backtrack_layers (for example 10) or trough_backtrack_ratio."
        )
    tokens = vllm_config.scheduler_config.max_num_batched_tokens
    size = (len(plan.depths) - 1) * tokens * hidden * vllm_config.model_config.dtype.itemsize
    per_token = kv_bytes_per_token(vllm_config)
    cost = f", the memory of {size // per_token} KV-cache tokens" if per_token else ""
    layers = ", ".join(str(plan.layer(d)) for d in plan.depths)
    logger.info(
        "confident-decoding %s armed: select_method=%s p=%.2f candidates=%d window=%d layers=[%s] of 0..%d "
        "trough_log_interval=%d (vLLM %s, %s model runner). Packed rows add %.1f MiB at max_num_batched_tokens=%d%s.",
        confident_decoding.__version__,
        config.select_method,
        plan.p,
        plan.candidates,
        plan.window,
        layers,
        plan.num_layers - 1,
        config.trough_log_interval,
        vllm.__version__,
        "V2" if vllm_config.use_v2_model_runner else "V1",
        size / 2**20,
        tokens,
        cost,
    )
