"""What happens in the child process, which alone imports vLLM and lm-eval."""

import os
import tempfile
from collections.abc import Generator
from typing import IO, Any

from confident_decoding.engines.failures import VERBOSE, explain
from confident_decoding.engines.process import Process

TAIL = 15  # lines of a child's output that explain its end


class ChildError(RuntimeError):
    """The child could not do its work; the message says why.

    Attributes:
        status: Exit status for the command: 2 if what the user asked for is not valid, else 1.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def events(job: dict[str, Any], verbose: bool = False) -> Generator[dict[str, Any], None, None]:
    """Run `child` on ``job`` and yield what it reports until it has finished.

    Args:
        job: JSON data; ``job["work"]`` names the function.
        verbose: Let its output through to standard error.

    Raises:
        ChildError: It reported an error, or ended without a word.
    """
    # The scheduler in the process of the caller: batches then do not depend on when messages arrive.
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryFile() as file:
        log = None if verbose else file
        with Process("confident_decoding.evaluation.child", 2 if log is None else log, env) as child:
            child.tell(job)
            while (event := child.hear()) is not None:
                if event["event"] == "end":
                    return
                if event["event"] == "error":
                    raise ChildError(_reason(event, log), event["status"])
                yield event
            raise ChildError(f"a process of the evaluation ended with code {child.status()}.{_tail(log)}")


def _reason(event: dict[str, Any], log: IO[bytes] | None) -> str:
    """What the child says, or the cause in its log if that only says where to look."""
    message: str = event["message"]
    if event["status"] == 2:
        return message
    if log is None:
        return explain(RuntimeError(message), "")
    log.seek(0)
    return explain(RuntimeError(message), log.read().decode(errors="replace")) + VERBOSE


def _tail(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    text = log.read().decode(errors="replace")
    lines = [line.rsplit("\r", 1)[-1] for line in text.splitlines() if line.strip()]
    return f" End of its output (all of it with --verbose):\n{os.linesep.join(lines[-TAIL:])}"
