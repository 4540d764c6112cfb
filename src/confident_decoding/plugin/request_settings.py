"""What one request may ask for: ``SamplingParams.extra_args``, over HTTP ``vllm_xargs``."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from confident_decoding.config import VALID_METHODS, Method, SelectionPlan

PREFIX = "confident_"


class RequestArguments(BaseModel):
    """The arguments of a request, as it gives them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    confident_p: Annotated[
        float | None,
        Field(ge=0, le=1, description="a number from 0 (standard decoding) to 1 (always the selected layer)"),
    ] = None
    confident_max_backtrack_layers: Annotated[
        int | None, Field(ge=1, description="a whole number of candidate layers, the final one included")
    ] = None
    confident_select_method: Annotated[str | None, Field(description=VALID_METHODS)] = None
    confident_min_entropy: Annotated[float | None, Field(ge=0, description="nats from 0 (0 = scan every token)")] = None


@dataclass(frozen=True)
class RequestSettings:
    """How the tokens of one request are selected.

    Attributes:
        p: Probability of the selected layer.
        limit: Largest depth that the scan may reach; 0 = no scan.
        shift: Added to the trough.
        threshold: Nats; see `RowRules.thresholds`.
    """

    p: float
    limit: int
    shift: int
    threshold: float


def request_settings(
    extra_args: Mapping[str, Any] | None, plan: SelectionPlan, select_method: str
) -> RequestSettings | None:
    """Settings of a request on a server that runs ``plan``, or None if the request has none.

    Args:
        extra_args: As the request gives them; keys without our prefix are somebody else's.
        plan: The server's.
        select_method: The server's, as its operator wrote it.

    Raises:
        ValueError: An argument is unknown, not valid, or asks for what this server does not capture.
    """
    ours = {key: value for key, value in (extra_args or {}).items() if key.startswith(PREFIX)}
    if not ours:
        return None
    for key in ours:
        if key not in RequestArguments.model_fields:
            nearest = difflib.get_close_matches(key, RequestArguments.model_fields, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"confident-decoding: unknown request argument {key!r}: did you mean {nearest!r}? "
                f"Valid are {', '.join(RequestArguments.model_fields)}."
            )
    try:
        asked = RequestArguments.model_validate(ours)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        raise _not_valid(key, ours[key], f"Expected {RequestArguments.model_fields[key].description}.") from None
    p = plan.p if asked.confident_p is None else asked.confident_p
    limit, shift = _scan_of(asked, plan, select_method)
    threshold = plan.min_entropy if asked.confident_min_entropy is None else asked.confident_min_entropy
    return RequestSettings(p, limit, shift, threshold if limit else 0.0)


def _scan_of(asked: RequestArguments, plan: SelectionPlan, select_method: str) -> tuple[int, int]:
    """Limit and shift."""
    layers, method = asked.confident_max_backtrack_layers, asked.confident_select_method
    if plan.fixed_depth is not None:
        for key in ("confident_max_backtrack_layers", "confident_min_entropy"):
            if (value := getattr(asked, key)) is not None:
                raise _not_valid(key, value, f"This server runs {select_method}, which scans nothing.")
        if method not in (None, select_method):
            raise _not_valid(
                "confident_select_method", method, f"This server captures what {select_method} needs only."
            )
        return plan.window, 0
    if layers is not None and layers > plan.candidates:
        raise _not_valid(
            "confident_max_backtrack_layers",
            layers,
            f"This server has {plan.candidates} candidate layers: at most that.",
        )
    limit = plan.window if layers is None else min(layers - 1, plan.window)
    try:
        parsed = Method("trough", plan.shift) if method is None else Method.parse(method)
    except ValueError as error:
        raise _not_valid("confident_select_method", method, f"It is an {error}.") from None
    largest = len(plan.depths) - 1
    if parsed.fixed_depth is not None:
        for key in ("confident_max_backtrack_layers", "confident_min_entropy"):
            if (value := getattr(asked, key)) is not None:
                raise _not_valid(key, value, f"{method} scans nothing, so the two cannot be combined.")
        limit, shift, needed = 0, parsed.fixed_depth, parsed.fixed_depth
    else:
        shift, needed = parsed.shift, min(limit + max(parsed.shift, 0), plan.candidates - 1)
        if layers is not None and layers < plan.candidates and shift > 0:
            why = f"A layer before the trough (trough-m{shift}) can lie beyond a request's own window."
            raise _not_valid("confident_max_backtrack_layers", layers, why)
    if needed > largest:
        why = f"It needs the layer {needed} before the final one, and this server captures {largest} of those."
        raise _not_valid("confident_select_method", method, why)
    return limit, shift


def _not_valid(key: str, value: object, why: str) -> ValueError:
    return ValueError(f"confident-decoding: {key}={value!r} ({type(value).__name__}) is not valid. {why}")
