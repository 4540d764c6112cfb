"""What a line of evidence (`prove`) must show; used by the tests and by the table in docs/models.md."""

from plugin.checks import TIE

TOLERANCE = 1e-3  # absolute, states and logits, in float32
BFLOAT16_FACTOR = 1.5  # a candidate's relative error over that of the next layer, in the end stock's final state
MIN_ROWS = 20


def problems(row):
    """What is wrong with one line, as sentences; empty if it proves its architecture."""
    if "error" in row:
        return [row["error"].strip().splitlines()[-1]]
    found = []
    exact = row["dtype"] == "float32"
    for measured in (row, row.get("image")):
        found += state_problems(measured, exact) if measured else []
    # Two units in the last place of values between 2 and 4.
    if row["last_stream_error"] is not None and row["last_stream_error"] > (1e-5 if exact else 2 * 2**-6):
        found.append(f"norm(stream after the last layer) differs from the final state by {row['last_stream_error']}")
    # Recomputed one layer at a time, so in bfloat16 some units in the last place of logits up to 8.
    if row.get("returned_logprob_error", 0) > (1e-4 if exact else 0.1):
        found.append(f"returned logprobs are off by {row['returned_logprob_error']} from those of the chosen layers")
    for name, least in {"depths": MIN_ROWS if exact else 0, "depths_from_own_logits": MIN_ROWS}.items():
        depths = row[name]
        if depths["equal"] != depths["compared"]:
            found.append(f"{name}: {depths['equal']} of {depths['compared']} equal the oracle's")
        if depths["compared"] < least:
            found.append(f"{name}: only {depths['compared']} rows are decided by more than {depths['gap']} nats")
    if len(row["depths_seen"]) < 3:
        found.append(f"only depths {row['depths_seen']} were selected: too easy")
    if not row["p0_bit_equal"] and "enforce_eager" not in row["options"]:
        found.append("p=0 differs from the plugin switched off")
    for model, stock in row.get("untouched", {}).items():
        if not stock:
            found.append(f"a model that must be stock is not: {model}")
    for decision in row.get("batched", {}).get("left_at", []):
        if min(decision["gap"], decision["margin"]) > TIE:
            found.append(f"a batched sequence left the oracle's without a tie: {decision}")
    return found


def state_problems(measured, exact):
    """What is wrong with states and logits, of the text prompts or of the one with an image."""
    errors = measured["relative_error_by_depth"]
    if exact:
        worst = max(measured[key] for key in ("state_error", "logit_error", "entropy_error"))
        return [f"states, logits or entropies are off by {worst:.1e}"] if worst > TOLERANCE else []
    # Errors grow from layer to layer, so a candidate's is also held against that of the layer after it.
    for depth in range(1, len(errors)):
        if errors[depth] > BFLOAT16_FACTOR * errors[depth - 1]:
            return [f"the error at depth {depth} is over {BFLOAT16_FACTOR} x that of the layer after it: {errors}"]
    return []
