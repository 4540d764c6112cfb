"""Install the hooks on a loaded model, after proving that it is what we model."""

import logging
from typing import Any

from torch import nn

import confident_decoding
from confident_decoding import stats
from confident_decoding.config import ConfidentDecodingConfig, ConfigError, SelectionPlan
from confident_decoding.plugin import adapters, borrowed, drafting, runner
from confident_decoding.plugin.anatomy import dissect, refusal
from confident_decoding.plugin.capture import CapturedStates, capturing_module, indices_of, switch_on_capture
from confident_decoding.plugin.compat import DRAFTS_FROM_FINAL_STATES, version_problem
from confident_decoding.plugin.cost import kv_bytes_per_token, packed_bytes
from confident_decoding.plugin.head import COUNTERS, SelectingHead
from confident_decoding.plugin.metrics import publish
from confident_decoding.plugin.pack import swap_class
from confident_decoding.plugin.proof import prove_capture, prove_logits, prove_passing

logger = logging.getLogger("vllm.confident_decoding")


def install(model: nn.Module, vllm_config: Any, config: ConfidentDecodingConfig, plan: SelectionPlan) -> None:
    """Hook one loaded model instance; nothing of its class or of other models is touched.

    Raises:
        ConfigError: The architecture is not one that provably works.
    """
    from vllm import envs
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    model_config = vllm_config.model_config
    rank = get_tensor_model_parallel_rank()
    reports = rank == 0
    hidden, dtype = model_config.get_hidden_size(), model_config.dtype
    capturing = capturing_module(model)
    parts = dissect(model, plan.num_layers)
    processor = parts.processor
    captured = CapturedStates(indices_of(plan))
    switch_on_capture(capturing, parts, captured.own)
    head = SelectingHead(
        processor,
        parts.final_state,
        fused_norm=parts.fused_norm,
        norm_weights=parts.norm.parameters,
        after_logits=parts.after_logits,
        batch_invariant=envs.VLLM_BATCH_INVARIANT,
        graphs=vllm_config.compilation_config.cudagraph_mode.name != "NONE",
        hidden=hidden,
        plan=plan,
        seed=model_config.seed or 0,
        select_method=config.select_method,
        log_interval=config.trough_log_interval,
        metrics=config.trough_metrics,
        reports=reports,
    )
    processor._apply_head = head

    def prove() -> None:
        prove_capture(parts, captured.indices, hidden=hidden, dtype=dtype)

    try:
        prove()
    except ConfigError:
        if parts.first == 0:
            raise
        # vLLM 0.26 to 0.29: most models count a pipeline stage's layers from the stage's own first one.
        switch_on_capture(capturing, parts, tuple(index - parts.first for index in captured.own))
        prove()
    prove_passing(parts, plan, vllm_config, hidden=hidden, dtype=dtype)
    prove_logits(parts, head, hidden=hidden, dtype=dtype)
    counters = stats.new_counters(plan.depths[-1], next(model.parameters()).device)
    # A buffer, because sleep level 2 discards plain allocations; not persistent: it is no weight.
    processor.register_buffer(COUNTERS, counters, persistent=False)
    if config.trough_metrics and reports:
        head.mirror = publish(vllm_config, plan, counters, processor)
    passage = _adapters(model, processor) if vllm_config.lora_config is not None else None
    borrowed.in_use_by(model)
    _hook_runners(model, vllm_config)
    width = len(plan.depths) * hidden
    setattr(model, runner.ATTRIBUTE, runner.Installed(head.requests, width, hidden))
    swap_class(model, captured, prove, head, passage)
    if reports:
        _announce(vllm_config, config, plan, hidden)
    else:
        logger.info("confident-decoding %s armed on tensor-parallel rank %d.", confident_decoding.__version__, rank)


def _adapters(model: nn.Module, processor: Any) -> adapters.HeadAdapters:
    """Only LoRA puts something before the head, after loading."""
    if problem := adapters.problem():
        raise refusal(model, f"its rows would have no way past LoRA's part of the output head ({problem})")
    return adapters.HeadAdapters(processor)


def _hook_runners(model: nn.Module, vllm_config: Any) -> None:
    problem = runner.wrap_runners()
    drafts = getattr(vllm_config.speculative_config, "method", None) in DRAFTS_FROM_FINAL_STATES
    if drafts and (found := problem or drafting.problem()):
        raise refusal(model, f"its drafter would get packed rows ({found})")
    if problem:
        logger.error("confident-decoding: requests cannot have settings of their own (%s).", problem)


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
    size = packed_bytes(len(plan.depths), tokens, hidden, vllm_config.model_config.dtype.itemsize)
    per_token = kv_bytes_per_token(vllm_config)
    cost = f", the memory of {size // per_token} KV-cache tokens" if per_token else ""
    layers = ", ".join(str(plan.layer(d)) for d in plan.depths)
    logger.info(
        "confident-decoding %s armed: select_method=%s p=%.2f candidates=%d window=%d layers=[%s] of 0..%d "
        "trough_min_entropy=%g trough_log_interval=%d trough_metrics=%s (vLLM %s, %s model runner). "
        "Packed rows add %.1f MiB at max_num_batched_tokens=%d%s.",
        confident_decoding.__version__,
        config.select_method,
        plan.p,
        plan.candidates,
        plan.window,
        layers,
        plan.num_layers - 1,
        config.trough_min_entropy,
        config.trough_log_interval,
        str(config.trough_metrics).lower(),
        vllm.__version__,
        "V2" if vllm_config.use_v2_model_runner else "V1",
        size / 2**20,
        tokens,
        cost,
    )
