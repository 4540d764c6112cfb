"""``custom_generate=confident_decoding.hf.generate``: the selection of the vLLM plugin in transformers."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from confident_decoding import planner, scan, stats
from confident_decoding.config import SWITCH, ConfidentDecodingConfig, ConfigError, SelectionPlan
from confident_decoding.hf.drive import check_call, decode, sample
from confident_decoding.hf.own_head import Project
from confident_decoding.hf.parts import num_layers
from confident_decoding.hf.steer import Step
from confident_decoding.kernels import operations, statistics_of_finished
from confident_decoding.model_head import ModelHead, Selection
from confident_decoding.selection import RowRules, hashed_draws

logger = logging.getLogger("confident_decoding.hf")


def generate(
    model: Any,
    input_ids: Tensor,
    *,
    generation_config: Any,
    confident_config: ConfidentDecodingConfig | Mapping[str, Any] | None = None,
    confident_seed: int = 0,
    output_depths: bool = False,
    final_norm: nn.Module | str | None = None,
    output_head: Project | None = None,
    **arguments: Any,
) -> Any:
    """Decode with Confident Decoding; pass it to ``model.generate`` as ``custom_generate``.

    All other arguments of ``model.generate`` keep their meaning: logits processors, temperature and the
    like act on the selected layer's logits.

    Args:
        model: Any decoder with a language modelling head, text-only or multimodal.
        input_ids: ``[B, T]``, from ``generate``.
        generation_config: From ``generate``.
        confident_config: The settings, or a dictionary of them (docs/configuration.md); needs no switch, but a
            switch that says off is respected. None = the defaults.
        confident_seed: Of the draws that mix layers if ``0 < p < 1``; other random numbers do not depend on it.
        output_depths: Add ``confident_depths`` to the result: per generated token a tensor ``[B]`` int64, how many
            layers before the final one its logits were read. Needs ``return_dict_in_generate=True``.
        final_norm: The norm before the output head, or its dotted name, where it is not found by name.
        output_head: Final states ``[m, H]`` to logits ``[m, V]`` including scale and soft cap, for a model whose
            own forward cannot be used for that.
        arguments: All else that ``generate`` hands to a decoding loop.

    Returns:
        As ``model.generate`` without ``custom_generate``.

    Raises:
        ConfigError: A setting cannot be used.
        UnsupportedModelError: The model does not show what the selection needs.
        ValueError: The generation mode is not supported (beam search, assisted decoding, ...), the seed is no whole
            number, or depths are asked for without ``return_dict_in_generate=True``.
        RuntimeError: The model is already generating with a ``custom_generate`` of this package.
    """
    check_call(model, generation_config, output_depths)
    config = _read(confident_config)
    if isinstance(confident_seed, bool) or not isinstance(confident_seed, int):
        raise ValueError(f"confident-decoding: confident_seed={confident_seed!r} is not a whole number.")
    plan = config.resolve(num_layers(model))
    off = SWITCH in config.model_fields_set and not config.enable_multi_layer_entropy_selection
    if plan.selects_nothing and not off:
        logger.warning("confident-decoding: these settings select nothing; every token uses the final layer.")
    if off or plan.selects_nothing or plan.p == 0:
        result, depths = sample(model, input_ids, generation_config=generation_config, **arguments), None
    else:
        selector = _Selector(plan, config, confident_seed)
        result = decode(
            model,
            input_ids,
            generation_config=generation_config,
            choose=selector,
            wanted=[plan.num_layers - depth for depth in plan.depths[1:]],
            final_norm=final_norm,
            output_head=output_head,
            **arguments,
        )
        depths = selector.depths
    if output_depths:
        steps = result.sequences.shape[1] - input_ids.shape[1]
        never = [torch.zeros(len(input_ids), dtype=torch.int64, device=input_ids.device)] * steps
        result["confident_depths"] = tuple(depths or never)[:steps]
    return result


def _read(given: ConfidentDecodingConfig | Mapping[str, Any] | None) -> ConfidentDecodingConfig:
    config = given if isinstance(given, ConfidentDecodingConfig) else _parse({} if given is None else given)
    if config.trough_metrics:
        raise ConfigError(
            "confident-decoding: trough_metrics=True needs a server to export to (`vllm serve`). Here leave it out; "
            "output_depths=True returns the depth of each token."
        )
    return config


def _parse(given: object) -> ConfidentDecodingConfig:
    if not isinstance(given, Mapping):
        raise ConfigError(
            "confident-decoding: confident_config is a ConfidentDecodingConfig or a dictionary of its keys, not "
            f"{type(given).__name__}."
        )
    try:
        config = ConfidentDecodingConfig.from_additional_config({SWITCH: True, **given})
    except ConfigError as error:
        raise ConfigError(str(error).replace("--additional-config", "confident_config")) from None
    # Unlike vLLM's dictionary, this one is ours alone.
    unknown = sorted(set(given) - set(ConfidentDecodingConfig.model_fields))
    if unknown:
        raise ConfigError(
            f"confident-decoding: confident_config has unknown keys {', '.join(map(repr, unknown))}. "
            f"Valid keys: {', '.join(ConfidentDecodingConfig.model_fields)}."
        )
    return config


class _Selector:
    """The choice of a layer by entropy; counts what it chose."""

    def __init__(self, plan: SelectionPlan, config: ConfidentDecodingConfig, seed: int) -> None:
        self._plan, self._config, self._seed = plan, config, seed
        self._counters: Tensor | None = None
        self._lines = stats.LogLines(plan, config.select_method)
        self.depths: list[Tensor] = []

    def __call__(self, step: Step) -> Tensor:
        """Logits ``[B, V]`` of the selected layers."""
        n, plan = self._plan.num_layers, self._plan
        packed = torch.cat([step.final, *(step.streams[n - depth] for depth in plan.depths[1:])], dim=1)
        head = ModelHead(
            norm=step.norm,
            project=step.project,
            statistics=statistics_of_finished,
            columns=step.logits.shape[1],
            rows_per_read=planner.rows_per_read(
                packed.device, step.final.shape[1], step.logits.shape[1], packed.dtype, plain=False
            ),
        )
        interval, number = self._config.trough_log_interval, len(self.depths) + 1
        due = bool(interval) and number % interval == 0
        draws = None
        if 0 < plan.p < 1:
            draws = hashed_draws(torch.arange(len(packed), device=packed.device), self._seed, number)
        rules = RowRules.of(plan, draws)
        selection = scan.select(packed, plan, head, rules, with_final_entropies=due)
        self.depths.append(selection.depths)
        if interval:
            self._report(replace(selection, entropies=None), rules, number, due)
        return selection.logits

    def _report(self, selection: Selection, rules: RowRules, number: int, due: bool) -> None:
        device = selection.depths.device
        if self._counters is None:
            self._counters = stats.new_counters(self._plan.depths[-1], device)
        operations(device).count(self._counters, None, False, selection, rules, self._plan.window)
        if due and selection.final_entropies is not None:
            self._lines.take(number, self._counters, selection.depths, selection.final_entropies)
            if self._counters.is_cuda:
                torch.cuda.current_stream().synchronize()
            for line in self._lines.arrived():
                logger.info(line)
