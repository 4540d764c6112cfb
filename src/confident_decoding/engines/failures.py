"""Why an engine failed, as a sentence."""

import itertools
import re

from confident_decoding.engines.options import text_of

_PREFIX = re.compile(r"^(?:\([^)]*\) )*(?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]+\] ?)?")
"""Of vLLM's log lines: process, level, time, place."""
_CAUSE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): (\S.*)")
_ELSEWHERE = re.compile(r"[Rr]oot cause|initialization failed|ended with status")
"""What an exception says whose cause is in the log."""
VERBOSE = " Run it again with --verbose to see all that vLLM says."


def explain(error: BaseException, log: str) -> str:
    """The reason of a failure, as a sentence: the exception's own text, or its cause in the log.

    Args:
        error: What was raised.
        log: What was printed before it.
    """
    text = text_of(error)
    if _ELSEWHERE.search(text):
        text = cause_in(log) or text
    text = " ".join(text.split())
    if "infer device type" in text:
        return (
            "vLLM found no device that it can run on: no GPU that this build supports. Run on a machine with one, or "
            "install vLLM's CPU build (confident-decoding[cpu])."
        )
    return text if text.endswith((".", ")")) else f"{text}."


def cause_in(log: str) -> str | None:
    """The last exception in a log that does not point elsewhere, with the lines that belong to it."""
    lines = [_PREFIX.sub("", line, count=1) for line in log.splitlines()]
    for number in reversed(range(len(lines))):
        found = _CAUSE.match(lines[number])
        if found and not _ELSEWHERE.search(found[1]):
            rest = itertools.takewhile(lambda line: line.startswith("  "), lines[number + 1 :])
            return " ".join([found[1], *itertools.islice(rest, 4)])
    return None
