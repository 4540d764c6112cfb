"""Which engine answers for which setting.

Requests carry settings of their own, so that settings share one engine wherever a request can ask for them. Prompt
log-probabilities follow the engine's settings alone: for tasks that read those, each setting has an engine.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confident_decoding.config import SWITCH, ConfidentDecodingConfig, SelectionPlan
from confident_decoding.evaluation.settings import Setting
from confident_decoding.plugin.request_settings import RequestSettings, request_settings

GENERATIVE = "generate_until"


@dataclass(frozen=True)
class Unit:
    """One task under one setting: what is kept, and what a restart skips.

    Attributes:
        task: Name of the task.
        setting: Name of the setting.
        arguments: ``SamplingParams.extra_args`` of each request.
    """

    task: str
    setting: str
    arguments: dict[str, Any] | None = None


@dataclass
class EngineStart:
    """One start of vLLM.

    Attributes:
        additional_config: Of the engine.
        units: What it answers, in order.
    """

    additional_config: dict[str, Any]
    units: list[Unit] = field(default_factory=list)


def arrange(
    settings: Sequence[Setting], tasks: Mapping[str, str], num_layers: int, own_engines: bool = False
) -> list[EngineStart]:
    """Distribute all settings and tasks over as few engines as give each its own meaning.

    Args:
        settings: Standard decoding among them.
        tasks: Output type by name, as lm-eval calls it.
        num_layers: N.
        own_engines: An engine for each setting, also where settings could share one.
    """
    configs: dict[str, tuple[dict[str, Any], dict[str, Any] | None]]
    configs = {setting.name: (setting.additional_config(), None) for setting in settings}
    if not own_engines:
        configs |= _shared(settings, num_layers)
    engines: dict[str, EngineStart] = {}

    def place(unit: Unit, additional_config: dict[str, Any], alone: str = "") -> None:
        key = json.dumps(additional_config, sort_keys=True) + alone
        engines.setdefault(key, EngineStart(additional_config)).units.append(unit)

    for task, output_type in tasks.items():
        for setting in settings:
            if output_type == GENERATIVE:
                config, arguments = configs[setting.name]
                place(Unit(task, setting.name, arguments), config)
                continue
            plan = setting.plan(num_layers)
            # Prompt rows mix by the engine's count of calls: what ran before in the engine must always be the same.
            place(Unit(task, setting.name), setting.additional_config(), task if plan and plan.p < 1 else "")
    return list(engines.values())


def _shared(settings: Iterable[Setting], num_layers: int) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
    """Configuration of the shared engine and the requests' arguments, by name of the settings that can share."""
    plans = {setting.name: setting.plan(num_layers) for setting in settings}
    needed = [_candidates(plan) for plan in plans.values() if plan]
    if not needed:
        return {}
    config: dict[str, Any] = {SWITCH: True, "trough_max_backtrack_layers": max(needed)}
    wide = ConfidentDecodingConfig.from_additional_config(config).resolve(num_layers)
    for setting in settings:
        if plans[setting.name] == wide:
            config = setting.additional_config()  # so that its log-likelihood tasks can use this engine too
    arguments = {name: _arguments(plan, wide) for name, plan in plans.items()}
    shared: dict[str, tuple[dict[str, Any], dict[str, Any] | None]]
    shared = {name: (config, found) for name, found in arguments.items() if found is not None}
    return shared if any(plans[name] for name in shared) else {}


def _candidates(plan: SelectionPlan) -> int:
    """Candidates that an engine must have to serve ``plan`` on request."""
    return (plan.window if plan.fixed_depth is None else plan.fixed_depth) + 1


def _arguments(plan: SelectionPlan | None, wide: SelectionPlan) -> dict[str, Any] | None:
    """Arguments with which a request to an engine of ``wide`` is decoded as by one of ``plan``; None if there are none.

    They are read back by what the engine reads them with, so that a request can mean nothing else here than there.
    """
    if plan is None:
        return {"confident_p": 0.0}
    asked: dict[str, Any] = {"confident_p": plan.p}
    if plan.fixed_depth is not None:
        asked["confident_select_method"] = f"last-m{plan.fixed_depth}"
        meant = RequestSettings(plan.p, 0, plan.fixed_depth, 0.0)
    else:
        meant = RequestSettings(plan.p, plan.window, plan.shift, plan.min_entropy)
        if plan.shift:
            asked["confident_select_method"] = f"trough-{'m' if plan.shift > 0 else 'p'}{abs(plan.shift)}"
        if plan.shift <= 0:
            asked["confident_max_backtrack_layers"] = plan.window + 1
        elif plan.candidates != wide.candidates:  # where a layer before the trough is clamped
            return None
        if plan.min_entropy:
            asked["confident_min_entropy"] = plan.min_entropy
    try:
        return asked if request_settings(asked, wide, "trough") == meant else None
    except ValueError:
        return None
