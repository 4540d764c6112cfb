"""One engine answers its units; runs in the child process."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import lm_eval
from lm_eval.models.vllm_causallms import VLLM
from vllm import SamplingParams
from vllm.platforms import current_platform

from confident_decoding.engines.counting import counting
from confident_decoding.engines.options import WrongUseError
from confident_decoding.evaluation.describe import given, load_tasks
from confident_decoding.evaluation.protocol import Send


class Model(VLLM):
    """lm-eval's vLLM model whose requests carry a setting of their own.

    Attributes:
        asked: ``SamplingParams.extra_args`` of each request to generate, or None.
        seed: Of the run; a request that draws anything gets one that follows from it and from its question.
    """

    asked: dict[str, Any] | None = None
    seed = 0

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers of lm-eval's requests, in order."""
        repeats: Counter[tuple[str, int, int]] = Counter()
        own = []
        for request in requests:
            text, options = request.args
            options = dict(options)
            if not options.get("do_sample"):
                # As lm-eval documents it; left out, its vLLM class would sample at vLLM's default temperature.
                options.setdefault("temperature", 0.0)
            if self.asked is not None:
                options["extra_args"] = {**options.get("extra_args", {}), **self.asked}
            question = (request.task_name, request.doc_id, request.idx)
            if "seed" not in options and self._draws(options):
                options["seed"] = _seed(self.seed, *question, repeats[question])
            repeats[question] += 1
            own.append(dataclasses.replace(request, arguments=(text, options)))
        return super().generate_until(own, disable_tqdm=disable_tqdm)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations."""
        self._check_own_engine(requests)
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of texts."""
        self._check_own_engine(requests)
        return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)

    def _check_own_engine(self, requests: list[Any]) -> None:
        """Log-likelihoods are of the engine's setting, so a unit that has only requests of its own cannot have them."""
        if self.asked is not None:
            raise WrongUseError(
                f"task {requests[0].task_name!r} generates text and reads log-likelihoods too: settings cannot share "
                "an engine for that. Evaluate it with --own-engines."
            )

    def _draws(self, options: dict[str, Any]) -> bool:
        sampled = bool(options.get("do_sample")) or float(options.get("temperature") or 0) > 0
        of_engine = (self.model_args["additional_config"] or {}).get("p", 1.0)
        return sampled or 0 < (self.asked or {}).get("confident_p", of_engine) < 1


def _seed(*parts: object) -> int:
    """A number under 2^31, the same wherever and whenever it is asked for."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()) >> 1


def answer(
    send: Send,
    model: str,
    options: str,
    model_args: dict[str, Any],
    additional_config: dict[str, Any],
    units: list[dict[str, Any]],
    tasks: list[str],
    include_path: list[str],
    seed: int,
    evaluation: dict[str, Any],
) -> None:
    """Start the engine and report each unit's result as a ``unit`` event.

    Args:
        send: Reports.
        model: Folder or name.
        options: Of ``vllm serve``, quoted as in a shell.
        model_args: Arguments of lm-eval's model class that are not vLLM's.
        additional_config: Of the engine.
        units: ``task``, ``setting`` and ``arguments`` of each.
        tasks: What was asked for: names, patterns or YAML files.
        include_path: Folders with task files of the user's own.
        seed: Of the engine, of few-shot examples and of requests.
        evaluation: Further arguments of ``lm_eval.simple_evaluate``.
    """
    loaded = load_tasks(tasks, include_path)["tasks"]
    arguments = model_args | given(model, options)
    if current_platform.is_cpu():
        # There a request with a seed whose prompt comes in parts ends vLLM ("CPU Generator does not use offset").
        arguments = {"enable_chunked_prefill": False, **arguments}
    lm = Model(pretrained=model, seed=seed, **arguments, additional_config=additional_config)
    lm.seed = seed
    if additional_config:
        _check_active(lm.model)
    lm.model.generate = _reporting(lm.model.generate, send)
    for unit in units:
        send("start", task=unit["task"], setting=unit["setting"])
        lm.asked = unit["arguments"]
        lm.model.reset_prefix_cache()  # a unit's numbers must not depend on which units were run before
        found = lm_eval.simple_evaluate(
            model=lm,
            tasks=[loaded[unit["task"]]],
            bootstrap_iters=0,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
            **evaluation,
        )
        send("unit", task=unit["task"], setting=unit["setting"], **_result(found, unit["task"], lm))


def _check_active(engine: Any) -> None:
    """An engine with the plugin refuses a request for p = 2; one without it knows no such argument.

    Raises:
        WrongUseError: The plugin is not active, so that all settings would be standard decoding.
    """
    try:
        engine.generate(
            [{"prompt_token_ids": [0]}],
            SamplingParams(max_tokens=1, detokenize=False, extra_args={"confident_p": 2}),
            use_tqdm=False,
        )
    except ValueError as error:
        if "confident_p" in str(error):
            return
        raise
    raise WrongUseError(
        "vLLM did not load the confident-decoding plugin, so every setting would be standard decoding. Look at "
        "VLLM_PLUGINS (confident_decoding must be in it, if it is set) and CONFIDENT_DECODING_DISABLE."
    )


def _reporting(generate: Callable[..., Any], send: Send) -> Callable[..., Any]:
    """``LLM.generate`` whose progress bar is the parent's."""
    count = counting(lambda done, total: send("progress", done=done, total=total))

    def reporting(*args: Any, use_tqdm: Any = True, **options: Any) -> Any:
        return generate(*args, use_tqdm=count, **options)

    return reporting


def _result(found: Any, task: str, lm: Model) -> dict[str, Any]:
    scores = {key: float(value) for key, value in found["results"][task].items() if _is_score(key, value)}
    samples = [_sample(sample, lm) for sample in found["samples"][task]]
    return {
        "scores": scores,
        "higher_is_better": found["higher_is_better"].get(task, {}),
        "num_fewshot": found["n-shot"].get(task),
        "samples": samples,
    }


def _is_score(key: str, value: Any) -> bool:
    return "," in key and "_stderr" not in key and _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (hasattr(value, "dtype") and not getattr(value, "shape", ()))


def _sample(sample: dict[str, Any], lm: Model) -> dict[str, Any]:
    """One question under one filter: its scores and what the model answered.

    Generated text is kept with its tokens as the tokenizer cuts it up; of log-likelihoods all are kept and, with
    several, the number of the highest.
    """
    kept = {
        "question": sample["doc_id"],
        "filter": sample["filter"],
        "prompt": sample["prompt_hash"],
        "metrics": {
            name: float(sample[name]) for name in sample["metrics"] if name in sample and _is_number(sample[name])
        },
    }
    responses = [response for request in sample["resps"] for response in request]
    if texts := [response for response in responses if isinstance(response, str)]:
        return {**kept, "answer": texts, "tokens": [lm.tok_encode(text, add_special_tokens=False) for text in texts]}
    likelihoods = [float(response[0] if isinstance(response, tuple | list) else response) for response in responses]
    # Choices with an empty context only measure how likely an answer is without its question.
    asked = [
        value
        for value, arguments in zip(likelihoods, sample["arguments"], strict=False)
        if len(arguments) > 1 and arguments[0] != ""
    ]
    chosen = max(range(len(asked)), key=asked.__getitem__) if len(asked) > 1 else None
    return {**kept, "loglikelihoods": likelihoods, "answer": chosen}
