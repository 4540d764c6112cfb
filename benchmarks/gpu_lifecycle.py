"""What happens to an engine between requests: sleep, new weights, scheduling ahead; run by benchmarks.gpu_check.

With ``VLLM_BATCH_INVARIANT=1``, eager, answers must be equal to the bit. Without, the kernels and the CUDA graphs of
the scan run, which read weights at fixed addresses: there the first token of each prompt is compared, whose step is the
same batch every time, by the logprobs of its best three.
"""

import math
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

from benchmarks.gpu_engine import DETERMINISTIC, INVARIANT, PROMPTS, RUNNERS, on, report, run, same
from benchmarks.shapes import small_checkpoint

MODES = {
    "batch-invariant": {"env": INVARIANT, "enforce_eager": True},
    "kernels and graphs": {"env": {DETERMINISTIC: "1"}},
}
"""Options of `run`."""
NOISE = 0.1  # nats; another checkpoint, or weights that are not there, differ by several


def compared(mode, found, expected):
    """``(whether, how far apart)`` of two answers to the same prompts."""
    if not found.get("tokens") or not expected.get("tokens"):
        return False, "no answer"
    nats = apart(found, expected, 1)
    shown = f"first tokens' logprobs differ by at most {max(nats):.4f} nats"
    if mode != "batch-invariant":
        return max(nats) < NOISE, shown
    rows = list(zip(found["tokens"], expected["tokens"], found["logprobs"], expected["logprobs"], strict=True))
    bits = [number for number, (_, _, mine, other) in enumerate(rows) if mine != other]
    told = f"{sum(mine == other for mine, other, _, _ in rows)}/{len(rows)} sequences"
    return all(mine == other for mine, other, _, _ in rows) and not bits, told + (
        f"; logprobs of requests {bits} differ; {shown}" if bits else ""
    )


def apart(found, expected, tokens):
    """Nats between logprobs of the best three, for each prompt, in its first tokens; until one is another.

    Of more than three: the fourth of one engine may be the third of another.
    """
    result = []
    for scores, others, mine, theirs in zip(
        found["logprobs"], expected["logprobs"], found["tokens"], expected["tokens"], strict=True
    ):
        most = 0.0
        for place in range(tokens):
            known = dict(map(tuple, others[place]))
            nats = [abs(score - known.get(token, -99.0)) for token, score in scores[place][:3]]
            most = max([most, *(each if math.isfinite(each) else math.inf for each in nats)])
            if mine[place] != theirs[place]:
                break
        result.append(most)
    return result


def modes_and_runners():
    """The name of each mode, and the options of an engine, with each model runner."""
    for mode, options in MODES.items():
        for number in RUNNERS:
            yield mode, {**options, "env": {**options["env"], "VLLM_USE_V2_MODEL_RUNNER": number}}


def sleep(model):
    """Answers after sleeping are those before, and statistics go on counting."""
    for mode, options in modes_and_runners():
        result = run(
            model,
            on(trough_log_interval=16),
            **options,
            then=[{"sleep": 1}, {"sleep": 2}],
            sampling={"logprobs": 8},
            enable_sleep_mode=True,
        )
        later = result.get("later") or [{}, {}]
        for level, after in enumerate(later, 1):
            equal, text = compared(mode, after, result)
            report(f"sleep level {level} and wake, {result['runner']} runner, {mode}", equal, text)
        steps = [int(line.split("step=")[1].split()[0]) for line in result["lines"] if "step=" in line]
        report("  statistics go on", len(steps) >= 8 and steps == sorted(set(steps)), f"steps {steps}")


def with_head_of(model, other, folder):
    """A copy of a checkpoint with the output head of another."""
    shutil.copytree(model, folder)
    tensors = load_file(f"{model}/model.safetensors")
    tensors["lm_head.weight"] = load_file(f"{other}/model.safetensors")["lm_head.weight"]
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


def update(model):
    """After an update in place answers are those of an engine that was started with the new weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = small_checkpoint(folder / "other", seed=1)
        headed = with_head_of(model, other, folder / "headed")
        for mode, options in modes_and_runners():
            asked = {"sampling": {"logprobs": 8}, **options}
            result = run(model, on(), then=[{"head": other}, {"path": other}, {"path": model}], **asked)
            later = result.get("later") or [{}, {}, {}]
            expected = run(headed, on(), **asked), run(other, on(), **asked), result
            for what, found, wanted in zip(
                ("another head", "other weights", "the first"), later, expected, strict=True
            ):
                equal, text = compared(mode, found, wanted)
                report(f"{what} in place, {result['runner']} runner, {mode}", equal, text)
            differ = all(found.get("tokens") and not compared(mode, found, result)[0] for found in later[:2])
            report("  they differ", differ)


def asynchronous(model):
    """Requests of several kinds, mixing among them, with asynchronous scheduling on and off."""
    kinds = [{}, {"extra_args": {"confident_p": 0}}, {"seed": 5, "extra_args": {"confident_p": 0.5}}, {}]
    sampling = [{"logprobs": 3, **kinds[number % len(kinds)]} for number in range(len(PROMPTS))]
    for number in RUNNERS:
        env = {**INVARIANT, "VLLM_USE_V2_MODEL_RUNNER": number}
        ahead, not_ahead = (
            run(model, on(trough_log_interval=16), env=env, sampling=sampling, async_scheduling=value)
            for value in (True, False)
        )
        text, equal = same(ahead, not_ahead)
        ran = (ahead.get("asynchronous"), not_ahead.get("asynchronous"))
        report(
            f"asynchronous scheduling on and off, {ahead['runner']} runner",
            equal and ahead["logprobs"] == not_ahead["logprobs"] and ran == (True, False),
            f"{text}; asynchronous: {ran}",
        )
