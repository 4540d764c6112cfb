"""``confident-decoding bench``: what Confident Decoding costs on this machine with this model."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from confident_decoding.bench.results import Times, machine, medians
from confident_decoding.bench.timed import EngineError, TimedEngine, environment
from confident_decoding.cli import options
from confident_decoding.cli.aside import end_politely, output_aside
from confident_decoding.cli.inputs import check_model, fail, read_additional_config, shown_name
from confident_decoding.cli.outputs import print_json
from confident_decoding.cli.progress import bar, terminal
from confident_decoding.cli.requirements import require_plugin, require_vllm
from confident_decoding.config import SWITCH
from confident_decoding.engines.failures import VERBOSE, explain
from confident_decoding.engines.options import WrongUseError, engine_args, require_active

STOCK, CONFIDENT = "stock", "confident"
PROMPT_ROOM = 32
"""Tokens that a prompt (`bench.timed.TEXTS`) may have."""


def bench(
    model: options.Model,
    batch: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of requests in a step.")] = "1,8",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each asks every engine every question.")] = 5,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of an answer; more make a round less noisy.")] = 128,
    one_at_a_time: Annotated[
        bool,
        typer.Option(
            "--one-at-a-time",
            help="First all rounds of the one engine, then of the other: for models that fit into the memory once. "
            "Drift of the machine then counts.",
        ),
    ] = False,
    additional_config: options.AdditionalConfig = None,
    vllm: options.EngineOptions = "",
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure a decode step with Confident Decoding beside one of stock vLLM.

    Two engines run side by side, each in a process of its own, and are asked in turn. Each number is the median over
    rounds; each ratio is to the stock engine of the same round. On a GPU each engine takes 45% of its memory unless
    --vllm says otherwise (--gpu-memory-utilization).

    The status is 0 if it was measured, 1 if something failed, 2 for wrong use.
    """
    values = read_additional_config(additional_config)
    if not values[SWITCH]:
        fail(f"--additional-config switches Confident Decoding off: leave {SWITCH} out, or true.")
    batches = _batches(batch)
    check_model(model)
    require_vllm()
    end_politely()
    defaults: dict[str, Any] = {
        "enable_prefix_caching": False,
        "max_num_seqs": max(8, *batches),
        **({} if one_at_a_time else {"gpu_memory_utilization": 0.45}),
    }
    with output_aside(verbose):
        arguments = engine_args(model, vllm, values, **defaults)  # wrong options are told before an engine starts
        require_plugin()
        require_active(arguments)
        defaults["max_model_len"] = _context(arguments, tokens)
        if arguments.max_num_seqs < max(batches):
            raise WrongUseError(
                f"{max(batches)} requests are more than an engine with --max-num-seqs {arguments.max_num_seqs} takes "
                "into a step."
            )
    spec = {"model": model, "options": vllm, "defaults": defaults}
    specs = {
        STOCK: {**spec, "additional_config": {**values, SWITCH: False}},
        CONFIDENT: {**spec, "additional_config": values},
    }
    groups = [[STOCK], [CONFIDENT]] if one_at_a_time else [[STOCK, CONFIDENT]]
    measured: list[Times] = [{} for _ in range(rounds)]
    total = 2 * len(batches) * (rounds + 1)
    with bar(terminal(verbose=False)) as progress:  # what vLLM says goes into files
        task = progress.add_task("", total=total)
        for group in groups:
            progress.update(task, description=f"starting vLLM ({' and '.join(group)})")
            with running({name: specs[name] for name in group}, verbose) as started:
                progress.update(task, description="measuring")
                for mine, round_ in zip(
                    measured, measure(started, batches, rounds, tokens, lambda: progress.advance(task)), strict=True
                ):
                    mine.update(round_)
    result = {
        "machine": machine(),
        "arguments": {"model": shown_name(model), "vllm": vllm, "tokens": tokens},
        "additional_config": values,
        "median": medians(measured),
        "rounds": measured,
    }
    if as_json:
        print_json(result)
    else:
        show(result, batches)


def _context(arguments: Any, tokens: int) -> int:
    """Tokens of context: what the user asked for, else enough; two engines with the model's own may not fit.

    Raises:
        WrongUseError: Answers of so many ``tokens`` do not fit.
    """
    longest: int = arguments.create_model_config().max_model_len
    if tokens + PROMPT_ROOM > longest:
        raise WrongUseError(
            f"--tokens {tokens}: answers after a prompt do not fit into a context of {longest} tokens. Give at most "
            f"{longest - PROMPT_ROOM}."
        )
    return longest if arguments.max_model_len is not None else min(longest, max(512, 2 * tokens))


def _batches(text: str) -> list[int]:
    try:
        batches = [int(number) for number in text.split(",")]
    except ValueError:
        batches = []
    if not batches or min(batches) < 1:
        fail(f"--batch {text!r} is not a list of numbers of requests. Give whole numbers from 1, as in --batch 1,8,32.")
    return list(dict.fromkeys(batches))


@contextlib.contextmanager
def running(specs: dict[str, dict[str, Any]], verbose: bool) -> Iterator[dict[str, TimedEngine]]:
    """Engines, started side by side and ended for certain.

    Raises:
        typer.Exit: One did not start, or ended while it was asked; the message is its reason.
    """
    with tempfile.TemporaryDirectory(prefix="confident-decoding-bench-") as folder:
        logs = {name: Path(folder) / f"{name}.log" for name in specs}
        try:
            with contextlib.ExitStack() as stack:
                started = {
                    name: stack.enter_context(TimedEngine(name, spec, logs[name], env=environment()))
                    for name, spec in specs.items()
                }
                for engine in started.values():
                    engine.wait()
                yield started
        except EngineError as error:
            log = logs[error.name].read_text(errors="replace")
            if verbose:
                Console(stderr=True).print(log, markup=False, highlight=False, soft_wrap=True)
            hint = "" if verbose else VERBOSE
            fail(f"the {error.name} engine failed: {explain(error, log)}{hint}", status=1)


def measure(
    started: dict[str, TimedEngine], batches: Sequence[int], rounds: int, tokens: int, done: Callable[[], None]
) -> list[Times]:
    """Rounds of ms per step, engines in turn; one more round comes first and warms up."""
    measured = []
    for _ in range(rounds + 1):
        times: Times = {}
        for name, engine in started.items():
            times[name] = {}
            for batch in batches:
                times[name][batch] = engine.ask(batch=batch, tokens=tokens)["ms"]
                done()
        measured.append(times)
    return measured[1:]


def show(result: dict[str, Any], batches: Sequence[int]) -> None:
    """Print the table and what it was measured on."""
    console, found = Console(highlight=False), result["machine"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("requests in a step", justify="right")
    for title in ("stock, ms", "confident, ms", "ratio (least to most)"):
        table.add_column(title, justify="right")
    for batch in batches:
        stock, mine = (result["median"][name][batch] for name in (STOCK, CONFIDENT))
        ratio = f"{mine['ratio']:.2f}x ({mine['least']:.2f} to {mine['most']:.2f})"
        table.add_row(str(batch), f"{stock['ms']:.2f}", f"{mine['ms']:.2f}", ratio)
    console.print(table)
    device = found["gpu"] or f"{found['cpu']}, {found['cores']} cores"
    versions = ", ".join(f"{name} {found[name]}" for name in ("vllm", "torch", "confident-decoding") if found[name])
    console.print(f"{result['arguments']['model']} on {device}; {versions}; median of {len(result['rounds'])} rounds.")
