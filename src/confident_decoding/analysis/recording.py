"""A vLLM engine in this process whose selecting head is recorded, one request at a time, so that rows map to tokens."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confident_decoding.analysis.recorder import Recorder, Seen
from confident_decoding.analysis.selections import troughs
from confident_decoding.config import SWITCH, SelectionPlan

Trajectory = Literal["confident", "standard"]
Prompt = str | list[dict[str, Any]]
"""Text that is continued as it is, or messages for the model's chat template."""
DEFAULT_LENGTH = 2048
"""Tokens of context where the model can have more: prefill memory grows with it, and texts are cut into such pieces."""


@dataclass(frozen=True)
class Sequence:
    """One answer, or one piece of a text, with what was recorded at each of its T tokens.

    Attributes:
        prompt: Token ids before the first one recorded.
        tokens: ``[T]`` int32, the tokens that follow: generated, or the text's own.
        seen: Rows, aligned with ``tokens``: row i is the distribution that token i was (or would be) drawn from.
    """

    prompt: list[int]
    tokens: NDArray[np.int32]
    seen: Seen


def defaults(candidates: int, trajectory: Trajectory) -> dict[str, Any]:
    """Engine arguments of an analysis; the user's own win.

    Args:
        candidates: Candidate layers that are recorded.
        trajectory: ``"standard"``: greedy from the final layer; ``"confident"``: greedy from the selected one.
    """
    settings = {SWITCH: True, "trough_max_backtrack_layers": candidates, "p": float(trajectory == "confident")}
    return {
        "additional_config": settings,
        "enforce_eager": True,  # compiling takes longer than most analyses
        "max_num_seqs": 1,
        "enable_prefix_caching": False,  # every row is computed
        "gpu_memory_utilization": 0.8,  # the rest is for all candidates' logits of a chunk of rows
    }


def resolve(arguments: Any) -> None:
    """Check ``EngineArgs`` against the model and complete them, before anything is loaded.

    Args:
        arguments: With `defaults`. A ``max_model_len`` that is not set becomes the model's, at most `DEFAULT_LENGTH`.

    Raises:
        RuntimeError: vLLM found nothing to run on.
        ValueError: Several processes, or speculation, are asked for.
        Exception: vLLM cannot read the model or refuses an argument, in its own words.
    """
    from vllm.platforms import current_platform

    if current_platform.is_unspecified():  # what follows would fail in odd ways
        raise RuntimeError("Failed to infer device type")
    if arguments.tensor_parallel_size * arguments.pipeline_parallel_size * arguments.data_parallel_size > 1:
        raise ValueError("rows are recorded in one process: tensor, pipeline and data parallelism must be 1")
    if arguments.speculative_config is not None:
        raise ValueError("drafts that are not accepted would be recorded as well: speculation must be off")
    longest = arguments.create_model_config().max_model_len
    if arguments.max_model_len in (None, -1):  # -1: "auto"
        arguments.max_model_len = min(longest, DEFAULT_LENGTH)
    # A prefill in one pass, so that there is one sampled row before the first token.
    arguments.max_num_batched_tokens = max(arguments.max_num_batched_tokens or 0, arguments.max_model_len)


class RecordingEngine:
    """Generates and scores with Confident Decoding armed, and records every candidate.

    Args:
        arguments: vLLM's ``EngineArgs``, after `resolve`; ``VLLM_ENABLE_V1_MULTIPROCESSING=0`` is in the environment.
        window: K, candidate layers that the served selection may choose from, at most those recorded.

    Raises:
        RuntimeError: Confident Decoding is not active in the engine, or the model has one layer.
        Exception: vLLM cannot start, in its own words.
    """

    def __init__(self, arguments: Any, window: int) -> None:
        from vllm import LLM

        self._llm = LLM.from_engine_args(arguments)
        self._recorder = Recorder()
        ((plan, self._layer_weights),) = self._llm.apply_model(self._attach)
        self.num_layers, self.depths = plan.num_layers, len(plan.depths)
        if self.depths < 2:
            raise RuntimeError(f"{arguments.model} has one layer, so there is nothing to select from")
        self.window = min(window, self.depths)
        self.trajectory: Trajectory = "confident" if plan.p else "standard"
        narrower = plan.p and self.window < self.depths
        self._limits = {"confident_max_backtrack_layers": self.window} if narrower else None
        config = self._llm.llm_engine.vllm_config.model_config
        self.max_model_len: int = config.max_model_len
        self.dtype = str(config.dtype).removeprefix("torch.")
        self.tokenizer = self._llm.get_tokenizer()

    def _attach(self, model: Any) -> tuple[SelectionPlan, int]:
        """Record the model's head: its plan, and the elements of its layers' matrices.

        Counted by their sizes: a CPU's weights are packed into something else after loading.
        """
        from vllm.model_executor.layers.linear import LinearBase

        from confident_decoding.plugin.anatomy import dissect, logits_processor
        from confident_decoding.plugin.head import SelectingHead

        head = getattr(logits_processor(model), "_apply_head", None)
        if not isinstance(head, SelectingHead):
            raise RuntimeError(
                "Confident Decoding is not active in this engine: is the plugin kept out by VLLM_PLUGINS or "
                "CONFIDENT_DECODING_DISABLE, or was pipeline parallelism asked for?"
            )
        head.recorder = self._recorder
        layers = dissect(model, head.plan.num_layers).layers
        linear = (module for module in layers.modules() if isinstance(module, LinearBase))
        return head.plan, sum(module.input_size * module.output_size for module in linear)

    def keep_tops(self, tokens: int) -> None:
        """Keep the best tokens of each candidate for so many rows from here on."""
        self._recorder.tops_left = tokens

    def generate(self, prompt: Prompt, max_tokens: int) -> Sequence:
        """Answer one prompt greedily and record each of its tokens.

        Args:
            prompt: What to answer.
            max_tokens: At most so many new ones.

        Raises:
            RuntimeError: What was recorded is not what was selected.
            Exception: vLLM refuses the prompt (too long, for example), in its own words.
        """
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, extra_args=self._limits)
        self._recorder.wanted = "sampled"
        ask = self._llm.generate if isinstance(prompt, str) else self._llm.chat
        (output,) = ask([prompt], params, use_tqdm=False)
        tokens = np.asarray(output.outputs[0].token_ids, np.int32)
        seen = self._take(len(tokens))
        depths = np.minimum(troughs(seen.entropies), self.window - 1)
        if self.trajectory == "confident" and (seen.depths != depths).any():
            raise RuntimeError("what was selected is not what the recorded entropies say; please report this")
        best = seen.best[np.arange(len(tokens)), depths if self.trajectory == "confident" else 0]
        # Of equally likely tokens vLLM may take another; rows of other tokens differ nearly everywhere.
        if (tokens != best).sum() > max(2, len(tokens) // 4):
            raise RuntimeError("the rows that were recorded are not those of the answer's tokens; please report this")
        return Sequence(list(output.prompt_token_ids or ()), tokens, seen)

    def score(self, ids: list[int]) -> Sequence:
        """Record the model's distribution at each token of a given text after its first, in one prefill.

        Args:
            ids: 2 to ``max_model_len - 1`` tokens.
        """
        from vllm import SamplingParams

        # Prompt log-probabilities are what makes vLLM give the head every row of a prompt.
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
        self._recorder.wanted = "prompt"
        self._llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        return Sequence(ids[:1], np.asarray(ids[1:], np.int32), self._take(len(ids) - 1))

    def head_flops_per_second(self, rows: int) -> float:
        """See `Recorder.head_flops_per_second`: of all candidates of ``rows`` rows."""
        return self._recorder.head_flops_per_second(self.depths * rows)

    def flops_per_token(self) -> float:
        """Of the matrix products that one token needs: the layers' (experts left out) and all candidates' head."""
        config = self._llm.llm_engine.vllm_config.model_config
        head: int = self.depths * config.get_hidden_size() * config.get_vocab_size()
        return 2.0 * float(self._layer_weights + head)

    def _take(self, rows: int) -> Seen:
        seen = self._recorder.take()
        # Asynchronous scheduling may run a step more than the answer has tokens.
        if len(seen.best) < rows:
            raise RuntimeError(f"vLLM gave {len(seen.best)} rows to the head for {rows} tokens; please report this.")
        return Seen(*(getattr(seen, name)[:rows] for name in Seen.__dataclass_fields__))
