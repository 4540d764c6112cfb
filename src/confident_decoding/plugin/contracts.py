"""What the hooks rely on in vLLM, in one list: checked before wrapping, and by ``make contracts``.

Each entry names a symbol and its leading parameters, or attributes that a class must give its
instances. `check_live` looks at the imported module; ``tools/contracts.py`` looks at the source of
every supported release.
"""

import inspect
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Contract:
    """One symbol of vLLM.

    Attributes:
        module: Dotted module name.
        name: ``Class.method``, ``function`` or ``Class``.
        parameters: Leading parameter names (``self`` left out); None for no function.
        attributes: Names that the class assigns on ``self`` or in its body.
        mentions: Names that the function's body must use.
    """

    module: str
    name: str
    parameters: tuple[str, ...] | None = None
    attributes: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()


_LP = "vllm.model_executor.layers.logits_processor"
_VPE = "vllm.model_executor.layers.vocab_parallel_embedding"
_LORA = "vllm.lora"

LOADER = Contract(
    "vllm.model_executor.model_loader.base_loader", "BaseModelLoader.load_model", ("vllm_config", "model_config")
)
FRONT_END = Contract("vllm.v1.engine.input_processor", "InputProcessor.__init__", ("vllm_config",))
HEAD = Contract(_LP, "LogitsProcessor._apply_head", ("lm_head", "hidden_states", "embedding_bias"))
REQUESTS = Contract(
    "vllm.v1.engine.input_processor", "InputProcessor.process_inputs", ("request_id", "prompt", "params")
)
_V1, _V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
RUNNERS = (
    Contract(_V1, "GPUModelRunner.execute_model", ("scheduler_output",)),
    Contract(_V2, "GPUModelRunner.execute_model", ("scheduler_output",)),
    Contract(_V2, "GPUModelRunner.sample", ("hidden_states", "input_batch"), mentions=("compute_logits",)),
)
PROPOSERS = (
    Contract(
        "vllm.v1.spec_decode.llm_base_proposer",
        "SpecDecodeBaseProposer.propose",
        ("num_speculative_tokens", "target_token_ids", "target_positions", "target_hidden_states"),
    ),
    Contract(
        "vllm.v1.worker.gpu.spec_decode.speculator",
        "BaseSpeculator.propose",
        ("input_batch", "attn_metadata", "slot_mappings", "last_hidden_states"),
    ),
)
ADAPTERS = Contract(
    f"{_LORA}.layers.logits_processor",
    "LogitsProcessorWithLoRA._get_logits",
    ("hidden_states", "lm_head"),
    mentions=("_apply_head", "base_layer", "add_lora_logits"),
)

CONTRACTS: tuple[Contract, ...] = (
    LOADER,
    FRONT_END,
    HEAD,
    REQUESTS,
    *RUNNERS,
    *PROPOSERS,
    ADAPTERS,
    # What tells which rows belong to which request (runner.py, request_rows.py).
    Contract(_V1, "GPUModelRunner", attributes=("input_batch", "positions")),
    # Whether a drafter reads captured states (drafting.py), and how it asks for them (capture.py).
    Contract(_V1, "GPUModelRunner", attributes=("use_aux_hidden_state_outputs",)),
    Contract(_V1, "GPUModelRunner._setup_eagle3_aux_hidden_state_outputs", mentions=("set_aux_hidden_state_layers",)),
    Contract(_V2, "GPUModelRunner.load_model", mentions=("set_eagle3_aux_hidden_state_layers",)),
    Contract(
        "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils",
        "set_eagle3_aux_hidden_state_layers",
        ("model", "spec_config"),
        mentions=("set_aux_hidden_state_layers",),
    ),
    Contract(
        "vllm.v1.worker.gpu.input_batch",
        "InputBatch",
        attributes=("req_ids", "cu_num_logits_np", "positions", "logits_indices"),
    ),
    Contract(
        "vllm.v1.core.sched.output",
        "SchedulerOutput",
        attributes=(
            "scheduled_new_reqs",
            "num_scheduled_tokens",
            "scheduled_spec_decode_tokens",
            "finished_req_ids",
        ),
    ),
    Contract("vllm.exceptions", "VLLMValidationError.__init__", ("message",)),
    Contract("vllm.v1.core.sched.output", "NewRequestData", attributes=("req_id", "sampling_params")),
    Contract(_LP, "LogitsProcessor", attributes=("scale", "soft_cap", "org_vocab_size", "logits_as_input")),
    Contract(_LP, "LogitsProcessor.forward", ("lm_head", "hidden_states"), mentions=("soft_cap", "scale")),
    Contract(
        _LP, "LogitsProcessor._get_logits", ("hidden_states", "lm_head"), mentions=("_apply_head", "org_vocab_size")
    ),
    Contract(_VPE, "VocabParallelEmbedding", attributes=("shard_indices", "num_embeddings_per_partition", "tp_size")),
    Contract(_VPE, "VocabParallelEmbeddingShardIndices", attributes=("org_vocab_start_index", "org_vocab_end_index")),
    Contract("vllm.model_executor.models.interfaces", "EagleModelMixin._set_aux_hidden_state_layers", ("layers",)),
    Contract(
        "vllm.model_executor.models.interfaces",
        "EagleModelMixin._maybe_add_hidden_state",
        mentions=("aux_hidden_state_layers",),
    ),
    Contract("vllm.model_executor.models.llama", "LlamaModel.forward", mentions=("_maybe_add_hidden_state", "norm")),
    Contract("vllm.model_executor.models.qwen2", "Qwen2Model.forward", mentions=("_maybe_add_hidden_state", "norm")),
    # What LoRA puts before the output head, and which adapters are in a slot (adapters.py).
    Contract(f"{_LORA}.layers.logits_processor", "LogitsProcessorWithLoRA", attributes=("base_layer",)),
    Contract(f"{_LORA}.layers.logits_processor", "LogitsProcessorWithLoRA.forward", mentions=("base_layer", "forward")),
    Contract(f"{_LORA}.model_manager", "LoRAModelManager", attributes=("lora_index_to_id", "modules")),
    Contract(f"{_LORA}.model_manager", "LoRAModelManager.__init__", ("model",), mentions=("lora_manager",)),
    Contract(f"{_LORA}.model_manager", "LoRAModelManager.list_adapters", (), mentions=("_registered_adapters",)),
    Contract(
        f"{_LORA}.model_manager",
        "LoRAModelManager.activate_adapter",
        ("lora_id",),
        mentions=("lora_index_to_id", "_registered_adapters", "_get_lora_layer_weights", "set_lora", "reset_lora"),
    ),
    Contract(f"{_LORA}.model_manager", "LoRAModelManager._get_lora_layer_weights", mentions=("get_lora",)),
    Contract(f"{_LORA}.lora_model", "LoRAModel.get_lora", ("module_name",)),
    Contract("vllm.distributed.communication_op", "tensor_model_parallel_all_gather", ("input_", "dim")),
    Contract("vllm.distributed.communication_op", "tensor_model_parallel_all_reduce", ("input_",)),
    Contract("vllm.distributed.parallel_state", "get_tensor_model_parallel_rank", ()),
    Contract("vllm.distributed.parallel_state", "get_pp_group", ()),
    Contract("vllm.distributed.utils", "get_pp_indices", ("num_hidden_layers", "pp_rank", "pp_size")),
    Contract("vllm.model_executor.models.utils", "PPMissingLayer"),
    Contract("vllm.distributed.parallel_state", "get_tensor_model_parallel_world_size", ()),
    Contract("vllm.forward_context", "set_forward_context", ("attn_metadata", "vllm_config")),
    # What the series of an engine are labelled with, and how vLLM serves several API processes' metrics (metrics.py).
    Contract("vllm.config.parallel", "ParallelConfig", attributes=("data_parallel_index",)),
    Contract("vllm.config.model", "ModelConfig", attributes=("served_model_name",)),
    Contract(
        "vllm.v1.metrics.prometheus", "get_prometheus_registry", (), mentions=("MultiProcessCollector", "REGISTRY")
    ),
    Contract("vllm.config.vllm", "VllmConfig.use_v2_model_runner", ()),
    Contract("vllm.config.vllm", "VllmConfig.compute_hash", (), mentions=("additional_config",)),
    Contract("vllm.config.parallel", "ParallelConfig", attributes=("prefill_context_parallel_size", "use_ubatching")),
    Contract("vllm.config.model", "ModelConfig.get_hidden_size", ()),
    Contract("vllm.v1.kv_cache_interface", "AttentionSpec"),
    Contract("vllm.config.model", "ModelConfig.get_total_num_hidden_layers", ()),
    Contract(_V1, "GPUModelRunner._dummy_sampler_run", mentions=("compute_logits",)),
    Contract(_V1, "GPUModelRunner._get_prompt_logprobs_dict", mentions=("compute_logits",)),
    Contract(_V2, "GPUModelRunner._dummy_sampler_run", mentions=("compute_logits",)),
    # The names that tell prompt rows and warm-up rows apart (rows.py).
    Contract(
        "vllm.v1.worker.gpu.sample.prompt_logprob", "PromptLogprobsWorker.compute_prompt_logprobs", ("logits_fn",)
    ),
    Contract("vllm.v1.worker.gpu.warmup", "warmup_kernels"),
    Contract("vllm.v1.worker.gpu_worker", "Worker.compile_or_warm_up_model"),
    Contract("vllm.v1.worker.gpu_worker", "Worker.determine_available_memory"),
    Contract("vllm.v1.worker.cpu_worker", "CPUWorker.compile_or_warm_up_model"),
    # What the command line asks of vLLM (engines/options.py, cli/probe.py, cli/compare.py, cli/rehearsal.py).
    Contract("vllm.renderers.registry", "renderer_from_config", ("config",)),
    Contract("vllm.renderers.base", "BaseRenderer.render_cmpl", ("prompts", "tok_params")),
    Contract("vllm.renderers.base", "BaseRenderer.render_chat", ("conversations", "chat_params", "tok_params")),
    Contract("vllm.renderers.base", "BaseRenderer.default_cmpl_tok_params", ()),
    Contract("vllm.renderers.base", "BaseRenderer.default_chat_tok_params", ()),
    Contract("vllm.renderers.params", "ChatParams", attributes=("chat_template_kwargs",)),
    Contract("vllm.renderers.params", "TokenizeParams", attributes=("max_total_tokens",)),
    Contract("vllm.renderers.inputs.preprocess", "parse_model_prompt", ("model_config", "prompt")),
    Contract("vllm.utils.mistral", "is_mistral_tokenizer"),
    Contract("vllm.engine.arg_utils", "EngineArgs.add_cli_args", ("parser",)),
    Contract("vllm.engine.arg_utils", "EngineArgs.from_cli_args", ("cls", "args")),
    Contract("vllm.engine.arg_utils", "EngineArgs.create_engine_config", ("usage_context",)),
    Contract("vllm.engine.arg_utils", "EngineArgs.create_model_config", ()),
    Contract("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
    Contract("vllm.entrypoints.llm", "LLM.from_engine_args", ("cls", "engine_args")),
    Contract("vllm.model_executor.models.registry", "_ModelRegistry", attributes=("models",)),
    Contract("vllm.model_executor.models.registry", "_LazyRegisteredModel.load_model_cls", ()),
    Contract(
        "vllm.model_executor.models.registry", "_ModelRegistry.resolve_model_cls", ("architectures", "model_config")
    ),
    Contract("vllm.config.model", "ModelConfig.registry", ()),
    Contract("vllm.config.model", "ModelConfig.architecture", ()),
    Contract("vllm.config.model", "ModelConfig.get_vocab_size", ()),
    Contract("vllm.plugins.__init__", "load_general_plugins", ()),
)


def check_live(contract: Contract, module: ModuleType) -> str | None:
    """What is wrong with a function of an imported module, or None.

    Args:
        contract: An entry with ``parameters``.
        module: The module that it names, imported.
    """
    target: object = module
    for part in contract.name.split("."):
        target = getattr(target, part, None)
        if target is None:
            return f"{contract.module}.{contract.name} does not exist"
    assert callable(target)
    found = [name for name in inspect.signature(target).parameters if name != "self"]
    expected = list(contract.parameters or ())
    if found[: len(expected)] != expected:
        return f"{contract.module}.{contract.name} takes {found}, expected {expected} first"
    return None
