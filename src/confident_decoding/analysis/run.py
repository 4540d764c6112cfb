"""An analysis from beginning to end: record, count, draw, and a folder that appears whole or not at all."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import confident_decoding
from confident_decoding.analysis import plots, texts
from confident_decoding.analysis.page import write_page
from confident_decoding.analysis.recording import Prompt, RecordingEngine, Sequence
from confident_decoding.analysis.summary import summarise
from confident_decoding.analysis.trace import About, Trace, TraceWriter

TRACE, SUMMARY, PAGE = "trace.parquet", "summary.json", "report.html"
GEMM_ROWS = 256
"""Rows whose candidates' projection is timed: as many as a chunk of the recorder, about."""
Progress = Callable[[int], None]
"""Called with the number of tokens that have been recorded since the last call."""


class UnusableError(ValueError):
    """What was given to be analysed cannot be; the message says why."""


class OutputError(RuntimeError):
    """The results cannot be written; the message says why, and that nothing was left there."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Within, nothing but writing to ``folder``: an ``OSError`` is an `OutputError`."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}. Nothing was left there.") from error


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that becomes it when the block ends; if the block raises, nothing stays behind.

    Args:
        target: Not there, or an empty folder.

    Raises:
        OutputError: It cannot be made.
    """
    partial_folder = target.with_name(f".partial-{os.getpid()}-{target.name}")
    with writing(target):
        partial_folder.mkdir()
    try:
        yield partial_folder
        with writing(target):
            partial_folder.replace(target)
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)


def answers(
    engine: RecordingEngine, prompts: Iterable[Prompt], max_tokens: int
) -> Iterator[tuple[Sequence, str | None]]:
    """Each prompt's answer, with the prompt as the model got it."""
    for prompt in prompts:
        sequence = engine.generate(prompt, max_tokens)
        yield sequence, engine.tokenizer.decode(sequence.prompt)


def readings(engine: RecordingEngine, pieces: Iterable[list[int]]) -> Iterator[tuple[Sequence, str | None]]:
    """Each piece of text, scored; there is no prompt."""
    for ids in pieces:
        yield engine.score(ids), None


def analyse(
    engine: RecordingEngine,
    sequences: Iterable[tuple[Sequence, str | None]],
    target: Path,
    *,
    model: str,
    trajectory: str,
    top_tokens: int,
    progress: Progress,
) -> dict[str, Any]:
    """Record ``sequences`` into a new folder and describe them.

    Args:
        engine: Whose sequences they are.
        sequences: Of `answers` or `readings`.
        target: The folder; gets the trace, the summary, a picture of each chart, and the page, or is not made.
        model: Its name.
        trajectory: See `trace.About`.
        top_tokens: Rows whose best tokens are kept, for the page.
        progress: Is told of each sequence.

    Returns:
        The summary.

    Raises:
        OutputError: A file could not be written.
        UnusableError: There is not one token.
    """
    import vllm

    versions = {"confident-decoding": confident_decoding.__version__, "vllm": vllm.__version__}
    about = About(model, engine.num_layers, engine.depths, engine.window, trajectory, engine.dtype, versions)
    spell = cache(partial(texts.spell, engine.tokenizer))
    with new_folder(target) as folder:
        prompts, speed = _record(engine, sequences, folder, about, top_tokens, progress)
        trace = Trace(folder / TRACE)
        if not trace.rows:
            raise UnusableError("no token was recorded: every answer is empty, or the text has fewer than two tokens")
        summary = {**summarise(trace, spell), "speed": speed}
        with writing(target):
            (folder / SUMMARY).write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            for chart in plots.CHARTS:
                plots.save_png(chart, summary, folder / f"{chart.name}.png")
            write_page(folder / PAGE, summary, trace, prompts, spell)
    return summary


def _record(
    engine: RecordingEngine,
    sequences: Iterable[tuple[Sequence, str | None]],
    folder: Path,
    about: About,
    top_tokens: int,
    progress: Progress,
) -> tuple[dict[int, str], dict[str, Any]]:
    """Write the trace; the prompts of the sequences whose best tokens are in it, and how fast that went."""
    prompts: dict[int, str] = {}
    tokens = 0
    engine.keep_tops(top_tokens)
    with writing(folder):
        writer = TraceWriter(folder / TRACE, about)
    start = time.perf_counter()
    try:
        for number, (sequence, prompt) in enumerate(sequences):
            if prompt is not None and len(sequence.seen.top_tokens):
                prompts[number] = prompt
            pieces = texts.running_text(engine.tokenizer, sequence.prompt, sequence.tokens.tolist())
            with writing(folder):
                writer.add(sequence, pieces)
            tokens += len(sequence.tokens)
            progress(len(sequence.tokens))
    finally:
        with writing(folder):
            writer.close()
    return prompts, _speed(engine, tokens, time.perf_counter() - start, about.trajectory)


def _speed(engine: RecordingEngine, tokens: int, seconds: float, trajectory: str) -> dict[str, Any]:
    """Tokens per second, and for texts, beside what this machine's matrix products alone would allow."""
    speed: dict[str, Any] = {"seconds": seconds, "tokens_per_second": tokens / seconds}
    if trajectory == "text" and tokens:
        flops = engine.head_flops_per_second(GEMM_ROWS)
        possible = flops / engine.flops_per_token()
        speed |= {
            "head_gflops_per_second": flops / 1e9,
            "gemm_tokens_per_second": possible,
            "share_of_gemm": tokens / seconds / possible,
        }
    return speed
