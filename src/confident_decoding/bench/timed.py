"""A vLLM engine in a process of its own that answers questions: how long is a step?"""

import shutil
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from confident_decoding.engines.process import Parent, Process

TEXTS = (
    "The history of the city begins with a small harbour",
    "To prepare the dough, first mix the flour with",
    "In physics, the conservation of energy means that",
    "She opened the letter slowly, because she already knew",
    "def binary_search(values, target):",
    "The committee discussed three proposals for the new bridge:",
    "Question: Why does the moon have phases? Answer:",
    "Once the rain had stopped, the children ran",
)
"""What rows continue: a row's depth depends on its text, and the time of a step on its rows' depths."""


class EngineError(RuntimeError):
    """An engine failed; the message is its own, or that its process ended (with the end of its log as a note).

    Attributes:
        name: The engine's.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class TimedEngine:
    """One engine in a process of its own that is asked questions. As a context, see `Process`.

    Args:
        name: For messages.
        spec: What the process is told first.
        log: File for its output.
        module: Run as ``python -m``; it answers each message of its `Parent` with one.
        env: Environment variables where the user has set none.
    """

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        log: Path,
        module: str = "confident_decoding.bench.timed",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        with log.open("w") as output:
            self._process = Process(module, output, env or {})
        self._process.tell(spec)

    def wait(self) -> Any:
        """Until it has started; returns what it said then.

        Raises:
            EngineError: It failed.
        """
        answer = self._process.hear()
        if answer is None:
            status = self._process.status()
            killed = " (killed: is there enough memory for two engines?)" if status == -signal.SIGKILL else ""
            error = EngineError(self.name, f"ended with status {status}{killed}")
            error.add_note(self.log.read_text(errors="replace")[-5000:])
            raise error
        if "error" in answer:
            raise EngineError(self.name, answer["error"])
        return answer

    def ask(self, **question: Any) -> Any:
        """One question, one answer.

        Raises:
            EngineError: It failed.
        """
        self._process.tell(question)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: Any) -> None:
        self._process.__exit__(*how)

    def close(self) -> None:
        """Let it finish; then it is gone. Idempotent."""
        self._process.close()


def step_ms(llm: Any, prompts: Sequence[Any], tokens: int, adapter: str | None = None) -> float:
    """Milliseconds per decode step of ``prompts`` at once: the difference of two lengths leaves prefill out.

    Args:
        llm: vLLM's ``LLM``.
        prompts: As ``LLM.generate`` takes them; B of them.
        tokens: The longer length.
        adapter: Folder of a LoRA adapter that all use.

    Raises:
        RuntimeError: An answer ended before its length, so that the difference is no number of steps.
    """
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    lora = LoRARequest("adapter", 1, adapter) if adapter else None
    seconds = []
    for length in (tokens, tokens // 4):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
        seconds.append(time.perf_counter() - start)
        if any(len(output.outputs[0].token_ids) != length for output in outputs):
            raise RuntimeError(f"answers of {length} tokens do not fit into the context")
    return 1000 * (seconds[0] - seconds[1]) / (tokens - tokens // 4)


def environment() -> dict[str, str]:
    """How engines run where the user has not said it: as people serve, but on a CPU without a process for each.

    There vLLM would also take most of the memory for its cache, and two engines run side by side.
    """
    if shutil.which("nvidia-smi"):
        return {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}


def serve(parent: Parent) -> None:
    """Answer ``{"batch": B, "tokens": n}`` with ms per step; the first message has what `engine_args` takes."""
    from vllm import LLM

    from confident_decoding.engines.options import engine_args, text_of

    questions = parent.messages()
    spec = next(questions)
    try:
        arguments = engine_args(spec["model"], spec["options"], spec["additional_config"], **spec["defaults"])
        llm = LLM.from_engine_args(arguments)
        parent.say({"ready": True})
        for question in questions:
            prompts = [f"{row}. {TEXTS[row % len(TEXTS)]}" for row in range(question["batch"])]
            parent.say({"ms": step_ms(llm, prompts, question["tokens"])})
    except Exception as error:
        traceback.print_exc()  # before the parent reads the log
        parent.say({"error": text_of(error)})


if __name__ == "__main__":
    serve(Parent())
