"""The user's settings: keys, validation, methods, and the window that follows from them (no torch).

Vocabulary: *depth d* counts layers back from the final one (depth 0). A *candidate* is a
depth that may be selected, the *window* the largest depth that the scan may reach.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

SWITCH = "enable_multi_layer_entropy_selection"
PAPER_CANDIDATES = 10
"""Candidates when neither window key is set: the window of the paper's experiments."""

VALID_METHODS = (
    "'trough'; 'trough-mK' or 'trough-pK' (K layers before or after the trough); "
    "'last-mK' (always the layer K before the final one), with K a whole number from 1, "
    "for example 'trough-m1' or 'last-m8'"
)
_METHOD = re.compile(r"(?P<family>trough|last)(?:-(?P<side>[mp])(?P<k>[1-9][0-9]{0,5}))?")
_LOOKALIKE = 0.85  # difflib ratio from which an unknown key counts as a misspelling of one of ours
_SWITCH_PREFIX = "enablemultilayer"
_OWN_PREFIXES = ("trough", _SWITCH_PREFIX)


class ConfigError(ValueError):
    """A setting of ours cannot be used; the message says which, what is valid and what to do."""


@dataclass(frozen=True)
class Method:
    """A parsed ``select_method``.

    Attributes:
        family: ``"trough"`` (scan, then shift) or ``"last"`` (one fixed depth).
        shift: Added to the trough's depth: +K for ``trough-mK`` (a layer farther back),
            -K for ``trough-pK``, else 0.
        fixed_depth: The depth of ``last-mK``, else None.
    """

    family: Literal["trough", "last"]
    shift: int = 0
    fixed_depth: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Parse a method name.

        Raises:
            ValueError: Unknown method; the message lists the valid forms.

        Example:
            >>> Method.parse("trough-p2")
            Method(family='trough', shift=-2, fixed_depth=None)
            >>> Method.parse("last-m8").fixed_depth
            8
        """
        match = _METHOD.fullmatch(text)
        if match:
            k = int(match["k"] or 0)
            if match["family"] == "trough":
                return cls("trough", shift=k if match["side"] == "m" else -k)
            if match["side"] == "m":
                return cls("last", fixed_depth=k)
        raise ValueError(f"unknown method; valid are {VALID_METHODS}")


@dataclass(frozen=True)
class SelectionPlan:
    """What one model does under one configuration; resolved once at startup.

    Attributes:
        num_layers: N, decoder layers of the model.
        candidates: L, depths ``0 .. L-1`` may be selected.
        window: Largest depth that the scan may reach (0 for ``last-mK``: there is no scan).
        shift: Added to the scanned depth, then clamped to ``[0, L-1]``.
        fixed_depth: Depth of ``last-mK``, or None.
        depths: Captured depths, ascending, depth 0 first: what a packed row holds.
        p: Probability that a row uses the selected layer.
        min_entropy: Rows whose final-layer entropy (nats) is at or below this stay at the final
            layer without a scan; 0 = no such rows.
    """

    num_layers: int
    candidates: int
    window: int
    shift: int
    fixed_depth: int | None
    depths: tuple[int, ...]
    p: float
    min_entropy: float = 0.0

    @property
    def selects_nothing(self) -> bool:
        """True if every row stays at the final layer whatever its logits are."""
        return self.depths == (0,)

    def layer(self, depth: int) -> int:
        """The model's own 0-based layer number at ``depth``."""
        return self.num_layers - 1 - depth


class ConfidentDecodingConfig(BaseModel):
    """The keys that ``--additional-config`` understands.

    Build one with `from_additional_config`, which also catches misspelt keys.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    enable_multi_layer_entropy_selection: Annotated[
        bool, Field(description="true or false (a JSON boolean, not a string)")
    ] = False
    select_method: Annotated[str, Field(description=VALID_METHODS)] = "trough"
    p: Annotated[
        float,
        Field(ge=0, le=1, description="a number from 0 (always the final layer) to 1 (always the selected layer)"),
    ] = 1.0
    trough_max_backtrack_layers: Annotated[
        int | None,
        Field(
            description="a whole number: > 0 that many candidate layers (final included), "
            "< 0 all layers, 0 to use trough_backtrack_ratio"
        ),
    ] = None
    trough_backtrack_ratio: Annotated[
        float | None,
        Field(ge=0, le=1, description="a number from 0 to 1: the share of the layers that are candidates"),
    ] = None
    trough_min_entropy: Annotated[
        float,
        Field(
            ge=0,
            description="nats from 0: rows whose final-layer entropy is at or below it stay at the final layer "
            "without a scan (0 = scan every row, exact)",
        ),
    ] = 0.0
    trough_log_interval: Annotated[int, Field(ge=0, description="a whole number of steps from 0 (0 = never log)")] = 0
    trough_metrics: Annotated[
        bool, Field(description="true or false (a JSON boolean): Prometheus metrics on the server's /metrics")
    ] = False

    @field_validator("select_method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        Method.parse(value)
        return value

    @property
    def method(self) -> Method:
        """The parsed ``select_method``."""
        return Method.parse(self.select_method)

    @classmethod
    def from_additional_config(cls, additional_config: object) -> "ConfidentDecodingConfig":
        """Read vLLM's ``additional_config``; keys of other plugins are left alone.

        With the switch off, only the switch's own key is examined.

        Args:
            additional_config: The user's dictionary. Anything that is not a mapping (vLLM also
                allows other plugins' hashable objects) means off.

        Raises:
            ConfigError: A key of ours is misspelt or has a bad value.
        """
        if not isinstance(additional_config, Mapping):
            return cls()
        enabled = additional_config.get(SWITCH, False) is not False
        ours = tuple(cls.model_fields) if enabled else (SWITCH,)
        problems = [
            f"unknown key {key!r} (value {value!r}): did you mean {nearest!r}? "
            f"Valid keys: {', '.join(cls.model_fields)}."
            for key, value in additional_config.items()
            if isinstance(key, str) and (nearest := _misspelt(key, ours, namespace=enabled))
        ]
        config = None
        try:
            config = cls.model_validate({key: additional_config[key] for key in ours if key in additional_config})
        except ValidationError as error:
            problems += [_describe(str(e["loc"][0]), e["input"]) for e in error.errors()]
        if problems or config is None:
            raise ConfigError("confident-decoding: --additional-config is not valid.\n  " + "\n  ".join(problems))
        return config

    def resolve(self, num_layers: int) -> SelectionPlan:
        """The plan for a model of ``num_layers`` decoder layers (N).

        The ratio applies twice, once to N and once to L, as published.

        Raises:
            ConfigError: ``last-mK`` with K >= N.

        Example:
            >>> ConfidentDecodingConfig(trough_backtrack_ratio=0.5).resolve(30).window
            7
        """
        method, n = self.method, num_layers
        if method.fixed_depth is not None:
            k = method.fixed_depth
            if k >= n:
                raise ConfigError(
                    f"confident-decoding: select_method='last-m{k}' needs more than {k} layers, and this model "
                    f"has {n}. Valid: 'last-m1' to 'last-m{n - 1}'."
                    if n > 1
                    else f"confident-decoding: select_method='last-m{k}' cannot be used: this model has one layer."
                )
            return SelectionPlan(n, k + 1, 0, 0, k, (0, k), self.p)
        candidates, window = self._window(n)
        largest = min(candidates - 1, window + max(method.shift, 0))
        depths = tuple(range(largest + 1))
        return SelectionPlan(n, candidates, window, method.shift, None, depths, self.p, self.trough_min_entropy)

    def _window(self, n: int) -> tuple[int, int]:
        if self.trough_max_backtrack_layers is None and self.trough_backtrack_ratio is None:
            candidates = min(n, PAPER_CANDIDATES)
            return candidates, candidates - 1
        k, ratio = self.trough_max_backtrack_layers or 0, self.trough_backtrack_ratio or 0.0
        if k:
            candidates = min(n, k) if k > 0 else n
            return candidates, candidates - 1
        if ratio:
            candidates = max(1, math.ceil(n * ratio))
            return candidates, min(candidates - 1, int(candidates * ratio))
        return 1, 0


def _squash(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.lower())


def _misspelt(key: str, ours: tuple[str, ...], namespace: bool) -> str | None:
    """The key of ours that ``key`` seems to mean, or None if it is right or somebody else's."""
    if key in ConfidentDecodingConfig.model_fields or key.startswith("_"):
        return None
    squashed = {_squash(own): own for own in ours}
    text = _squash(key)
    if text in squashed:
        return squashed[text]
    claimed = text.startswith(_OWN_PREFIXES if namespace else _SWITCH_PREFIX)
    nearest = difflib.get_close_matches(text, squashed, n=1, cutoff=0.0 if claimed else _LOOKALIKE)
    return squashed[nearest[0]] if nearest else None


def _describe(key: str, value: Any) -> str:
    field = ConfidentDecodingConfig.model_fields[key]
    return f"{key}={value!r} ({type(value).__name__}) is not valid. Expected {field.description}."
