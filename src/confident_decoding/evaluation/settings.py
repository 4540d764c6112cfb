"""Settings to compare, as the command line gives them: ``"p=0.5,window=10"``, ``"trough-p1"``, ``"last-m1"``."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confident_decoding.config import SWITCH, VALID_METHODS, ConfidentDecodingConfig, Method, SelectionPlan

STANDARD = "standard"
FORM = (
    "a setting is 'standard', or parts with commas between them, each a method or key=value. "
    f"Methods: {VALID_METHODS}. Keys: p (0 to 1), window (candidate layers, the final one included: from 1, or 'all'), "
    "ratio (share of the layers that are candidates: above 0, at most 1), min_entropy (nats from 0), method"
)


class SettingError(ValueError):
    """A setting cannot be used; the message says which, what is wrong and what is valid."""


@dataclass(frozen=True)
class Setting:
    """One way of decoding.

    Attributes:
        name: As the user wrote it, without spaces.
        config: None for standard decoding.
    """

    name: str
    config: ConfidentDecodingConfig | None = None

    def additional_config(self) -> dict[str, Any]:
        """What a server of this setting gets as ``--additional-config``; empty for standard decoding."""
        return self.config.model_dump(exclude_unset=True) if self.config else {}

    def plan(self, num_layers: int) -> SelectionPlan | None:
        """What it does to a model of ``num_layers`` decoder layers; None for standard decoding.

        Raises:
            SettingError: It cannot be used with so few layers.
        """
        if self.config is None:
            return None
        try:
            plan = self.config.resolve(num_layers)
        except ValueError as error:
            raise SettingError(f"setting {self.name!r}: {error}") from None
        return None if plan.p == 0 or plan.selects_nothing else plan


def _number(low: float, high: float, low_included: bool = True) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not (low <= value <= high) or (value == low and not low_included):
            raise ValueError
        return value

    return read


def _window(text: str) -> int:
    if text == "all":
        return -1
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise ValueError
    return int(text)


def _method(text: str) -> str:
    Method.parse(text)
    return text


_KEYS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "p": ("p", _number(0, 1), "a number from 0 to 1"),
    "window": ("trough_max_backtrack_layers", _window, "a whole number of candidate layers from 1, or 'all'"),
    "ratio": ("trough_backtrack_ratio", _number(0, 1, low_included=False), "a number above 0, at most 1"),
    "min_entropy": ("trough_min_entropy", _number(0, 1e6), "nats from 0"),
    "method": ("select_method", _method, VALID_METHODS),
}


def parse_setting(text: str) -> Setting:
    """Read one setting.

    Raises:
        SettingError: Names the setting, the part that is wrong and what is valid.

    Example:
        >>> parse_setting("trough-p1, p=0.5").additional_config()["select_method"]
        'trough-p1'
        >>> parse_setting("standard").additional_config()
        {}
    """
    name = "".join(text.split())
    if name == STANDARD:
        return Setting(STANDARD)
    values: dict[str, Any] = {SWITCH: True}
    for part in name.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = "method", part
        if key not in _KEYS or not value or (not equals and part in _KEYS):
            raise SettingError(f"setting {text!r}: {part!r} is not a key and value; {FORM}.")
        field, read, valid = _KEYS[key]
        if field in values:
            raise SettingError(f"setting {text!r} gives {key} twice.")
        try:
            values[field] = read(value)
        except ValueError:
            raise SettingError(f"setting {text!r}: {part!r} is not valid. Expected {valid}.") from None
    config = ConfidentDecodingConfig.from_additional_config(values)
    scan = [key for key in ("window", "ratio", "min_entropy") if _KEYS[key][0] in values]
    if config.method.fixed_depth is not None and scan:
        raise SettingError(f"setting {text!r}: {config.select_method} scans nothing, so {scan[0]} means nothing there.")
    if "window" in scan and "ratio" in scan:
        raise SettingError(f"setting {text!r}: window and ratio exclude each other; give one of them.")
    return Setting(name, config)


def ablation_of_p(text: str) -> list[str]:
    """Settings of ``--ablate-p "0.25,0.5"``: the paper's window, each p."""
    return [f"p={value}" for value in "".join(text.split()).split(",")]


def ablation_of_layers(text: str) -> list[str]:
    """Settings of ``--ablate-layers "1-4,8"``: always the layer so many before the final one.

    Raises:
        SettingError: Not whole numbers from 1 and ranges of them.
    """
    depths: list[int] = []
    for part in "".join(text.split()).split(","):
        match = re.fullmatch(r"([1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise SettingError(
                f"layers {text!r}: {part!r} is not valid. Give layers before the final one as whole numbers from 1 "
                "and ranges with commas between them, for example '1-4,8'."
            )
        depths += range(first, last + 1)
    return [f"last-m{depth}" for depth in dict.fromkeys(depths)]


def settings_for(texts: Sequence[str], num_layers: int) -> tuple[list[Setting], list[str]]:
    """The settings to run on a model of ``num_layers`` layers, standard decoding first.

    Returns:
        The settings, and those of ``texts`` that are standard decoding by another name (``p=0``, one candidate).

    Raises:
        SettingError: One is not valid, or two mean the same.
    """
    settings, same_as_standard = [Setting(STANDARD)], []
    names: dict[SelectionPlan, str] = {}
    for setting in map(parse_setting, texts):
        plan = setting.plan(num_layers)
        if plan is None:
            same_as_standard += [setting.name] if setting.name != STANDARD else []
        elif plan in names:
            raise SettingError(
                f"settings {names[plan]!r} and {setting.name!r} mean the same for this model of {num_layers} layers; "
                "give one of them."
            )
        else:
            names[plan] = setting.name
            settings.append(setting)
    return settings, same_as_standard
