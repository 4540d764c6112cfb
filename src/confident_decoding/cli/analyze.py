"""``confident-decoding analyze``: what the selection does on a model, token by token."""

import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from confident_decoding.cli import options
from confident_decoding.cli.aside import end_politely, output_aside
from confident_decoding.cli.inputs import Prompt, check_model, fail, read_prompts, require, shown_name
from confident_decoding.cli.outputs import print_json
from confident_decoding.cli.progress import bar, spinner
from confident_decoding.cli.rehearsal import check_lengths, rehearse
from confident_decoding.cli.requirements import require_vllm
from confident_decoding.engines.options import WrongUseError, engine_args, text_of


class Trajectory(StrEnum):
    """Which answers are recorded."""

    CONFIDENT = "confident"
    STANDARD = "standard"


def analyze(
    model: options.Model,
    prompts: Annotated[
        Path | None,
        typer.Argument(
            metavar="PROMPTS",
            help='A JSON-lines file that the model answers; each line a string, {"prompt": "..."}, or {"messages": '
            '[{"role": "user", "content": "..."}]} for the chat template.',
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A text that the model reads, instead of prompts (teacher forcing). May be given several times.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="New folder for the results. Default: analysis-MODEL.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[int, typer.Option(metavar="K", min=2, help="Candidate layers, the final one included.")] = 10,
    sweep: Annotated[
        int,
        typer.Option(metavar="K", min=0, help="Also report windows up to so many layers. 0: not beyond --window."),
    ] = 20,
    trajectory: Annotated[
        Trajectory,
        typer.Option(
            help="Record answers of Confident Decoding, or of standard decoding (and what would be selected)."
        ),
    ] = Trajectory.CONFIDENT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    top_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tokens that the page shows, with the best five of each of their candidates. Default: 10,000, in a "
            "window of over 10 fewer, so that the page stays under 5 MB.",
            show_default=False,
        ),
    ] = None,
    vllm: options.EngineOptions = "",
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Record what every candidate layer says at each token, and report what the selection makes of it.

    The model runs in vLLM, in this process, one request at a time, with Confident Decoding on. It answers prompts,
    or reads a text. The results are a new folder with

    - report.html: charts, and the text with each token coloured by its depth; one file, no network needed.

    - summary.json: all figures. trace.parquet: a row for each token. PNG files: the charts.

    The context is the model's, up to 2048 tokens (--vllm "--max-model-len 8192" for more); longer texts are cut.

    The status is 0 if the analysis was made, 1 if something failed, 2 for wrong use.
    """
    if (prompts is None) == (not text):
        fail("give either a JSON-lines file of PROMPTS or a text with --text FILE.")
    check_model(model)
    name = shown_name(model)
    target = _new_folder(output or Path(f"analysis-{Path(name).name}"))
    asked = read_prompts(prompts) if prompts else []
    given = [_read_text(path) for path in text or ()]
    require_vllm()
    require("analyze", "jinja2", "matplotlib", "numpy", "pyarrow", extra="analysis")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # rows are recorded in this process
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB, for one request at a time
    end_politely()
    shown = min(10_000, 100_000 // max(1, window)) if top_tokens is None else top_tokens
    with output_aside(verbose) as terminal:
        served = "confident" if given else trajectory.value
        engine = _start(model, vllm, window, max(window, sweep), served, asked, terminal)
        summary = _analyse(engine, asked, given, target, terminal, model=name, max_tokens=max_tokens, top_tokens=shown)
    if as_json:
        print_json(summary)
    else:
        _show(summary, target)


def _start(
    model: str, vllm: str, window: int, candidates: int, trajectory: Any, asked: list[Prompt], terminal: Console
) -> Any:
    from confident_decoding.analysis.recording import RecordingEngine, defaults, resolve

    with spinner(terminal, f"Starting vLLM with {model} ..."):
        settings = defaults(candidates, trajectory)
        try:
            # vLLM looks a name up while it reads its options, and the model while those are completed.
            arguments = engine_args(model, vllm, settings.pop("additional_config"), **settings)
            resolve(arguments)
        except WrongUseError:
            raise
        except (ValueError, OSError) as error:
            raise WrongUseError(f"vLLM cannot use {model!r}: {text_of(error)}") from error
        lengths = rehearse(arguments, asked) if asked else []
        engine = RecordingEngine(arguments, window)
    check_lengths(asked, lengths, engine.max_model_len)
    return engine


def _analyse(
    engine: Any,
    asked: list[Prompt],
    given: list[str],
    target: Path,
    terminal: Console,
    *,
    max_tokens: int,
    **about: Any,
) -> dict[str, Any]:
    from confident_decoding.analysis import run, texts

    with bar(terminal) as progress:
        if given:
            cut = partial(texts.cut, engine.tokenizer, longest=engine.max_model_len - 1)
            # Twice rather than kept: a text may be long.
            task = progress.add_task("tokens read", total=sum(len(piece) - 1 for text in given for piece in cut(text)))
            sequences, trajectory = run.readings(engine, (piece for text in given for piece in cut(text))), "text"
        else:
            task = progress.add_task("prompts answered", total=len(asked))
            sequences, trajectory = (
                run.answers(engine, [p.messages or p.prompt or "" for p in asked], max_tokens),
                engine.trajectory,
            )
        try:
            return run.analyse(
                engine,
                sequences,
                target,
                trajectory=trajectory,
                progress=lambda tokens: progress.advance(task, tokens if given else 1),
                **about,
            )
        except run.UnusableError as error:
            raise WrongUseError(str(error)) from error


def _new_folder(folder: Path) -> Path:
    """The folder, if it can be made."""
    parent = folder.absolute().parent
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(f"{folder} is there already. Give another folder with --output, or remove it.")
    if not parent.is_dir():
        fail(f"cannot make {folder}: there is no folder {parent}. Make it first, or give another --output.")
    if not os.access(parent, os.W_OK | os.X_OK):
        fail(f"cannot make {folder}: no permission to write in {parent}. Give another --output.")
    return folder


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"cannot read the text {path}: {error.strerror}. Give a text file.")
    except UnicodeDecodeError as error:
        fail(f"{path} is not UTF-8 text (byte {error.start}).")
    if not text.strip():
        fail(f"{path} holds no text.")
    return text


def _show(summary: dict[str, Any], target: Path) -> None:
    console, table = Console(), Table(show_header=False, box=None)
    speed = summary["speed"]
    for name, value in (
        ("tokens", f"{summary['tokens']:,} in {summary['sequences']:,} sequences ({summary['trajectory']})"),
        ("not at final", f"{100 * summary['not_at_final']:.1f} %"),
        ("replaced", f"{100 * summary['replaced']:.1f} %"),
        ("mean depth", f"{summary['mean_depth']:.2f}, in a window of {summary['window']} layers"),
        ("extra projections", f"{summary['extra_projections']:.2f} a token, in a lazy scan"),
        ("entropy drop", f"{summary['entropy']['drop']:.3f} nats a token, of {summary['entropy']['final']:.3f}"),
        ("speed", f"{speed['tokens_per_second']:.1f} tokens/s"),
    ):
        table.add_row(name, value)
    if "share_of_gemm" in speed:
        table.add_row(
            "",
            f"{100 * speed['share_of_gemm']:.0f} % of the {speed['gemm_tokens_per_second']:.0f} tokens/s that matrix "
            f"products alone allow ({speed['head_gflops_per_second']:.0f} GFLOP/s, measured now)",
        )
    console.print(table)
    console.print(f"Open {target / 'report.html'} in a browser.", soft_wrap=True, markup=False, highlight=False)
