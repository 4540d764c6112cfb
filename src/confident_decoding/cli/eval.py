"""``confident-decoding eval``: is the method better on your model and your tasks?"""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from confident_decoding.cli import options
from confident_decoding.cli.aside import end_politely
from confident_decoding.cli.inputs import check_model, fail, require
from confident_decoding.cli.outputs import print_json, write_text
from confident_decoding.cli.progress import bar, spinner, terminal
from confident_decoding.cli.requirements import require_vllm

if TYPE_CHECKING:
    from confident_decoding.evaluation.run import Evaluation


def evaluate(
    model: options.Model,
    tasks: Annotated[
        list[str],
        typer.Option(
            "--tasks",
            "-t",
            metavar="NAMES",
            help="Tasks of lm-evaluation-harness: names, patterns or YAML files, with commas between.",
        ),
    ],
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            "-s",
            metavar="SETTING",
            help="What to compare with standard decoding; may be given several times. Parts with commas between: "
            "a method ('trough', 'trough-p1', 'last-m8') and p=, window=, ratio=, min_entropy=. "
            "Default: 'trough', the paper's.",
            show_default=False,
        ),
    ] = None,
    ablate_p: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Also each of these p, for example '0.25,0.5,0.75'.", show_default=False),
    ] = None,
    ablate_layers: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", help="Also always the layer so many before the final one: '1-4,8'.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for results. The same command again goes on where the last one stopped.",
        ),
    ] = Path("confident-eval"),
    include_path: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Folder with task files of your own; may be given several times.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many questions of each task.", show_default=False)
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Examples in each prompt, instead of the tasks' own number.")
    ] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Put prompts into the model's chat template.")
    ] = False,
    system_instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message in front of each prompt.")
    ] = None,
    gen_kwargs: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Generation options instead of the tasks' own: '{\"max_gen_toks\": 512}'.",
            show_default=False,
        ),
    ] = None,
    model_args: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Arguments of lm-eval's vllm model that are not options of vLLM, for example "
            "'{\"add_bos_token\": true}'.",
            show_default=False,
        ),
    ] = None,
    vllm: options.EngineOptions = "",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that draws: the same seed, the same numbers.")] = 1234,
    own_engines: Annotated[
        bool,
        typer.Option("--own-engines", help="Start an engine for each setting, also where requests could share one."),
    ] = False,
    allow_unsafe_code: Annotated[
        bool, typer.Option("--allow-unsafe-code", help="Let tasks run the code that the model writes.")
    ] = False,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare standard decoding with Confident Decoding on tasks of lm-evaluation-harness.

    Each setting answers the same prompts as standard decoding. For each task you get both scores, the difference
    with a paired 95% interval, McNemar's p, and how many answers and tokens are not standard decoding's.

    Example: confident-decoding eval MODEL --tasks gsm8k -s trough -s last-m1 --limit 200

    The status is 0 if the comparison was made, 1 if something failed, 2 for wrong use.
    """
    check_model(model)
    require_vllm()
    end_politely()
    require("eval", "lm_eval", "numpy", "scipy", extra="eval")
    from confident_decoding.evaluation.events import ChildError
    from confident_decoding.evaluation.folder import FolderError
    from confident_decoding.evaluation.run import Evaluation, Request
    from confident_decoding.evaluation.settings import SettingError, ablation_of_layers, ablation_of_p, parse_setting

    try:
        settings = list(setting or ["trough"])
        known = [parse_setting(text).config for text in settings]  # before anything is started
        ablations = ablation_of_p(ablate_p) if ablate_p is not None else []
        ablations += ablation_of_layers(ablate_layers) if ablate_layers is not None else []
        settings += [text for text in ablations if parse_setting(text).config not in known]
        request = Request(
            model=model,
            tasks=[name for text in tasks for part in text.split(",") if (name := part.strip())],
            settings=settings,
            output=output,
            include_path=[str(_folder(path)) for path in include_path or ()],
            limit=limit,
            num_fewshot=num_fewshot,
            apply_chat_template=apply_chat_template,
            system_instruction=system_instruction,
            gen_kwargs=_json("--gen-kwargs", gen_kwargs) if gen_kwargs is not None else None,
            vllm=vllm,
            model_args=_json("--model-args", model_args) if model_args is not None else {},
            seed=seed,
            own_engines=own_engines,
            allow_unsafe_code=allow_unsafe_code,
            verbose=verbose,
        )
        if not request.tasks:
            fail("--tasks names no task.")
        notes = terminal(verbose, markup=False, soft_wrap=True)
        with spinner(notes, "Reading the model and the tasks ..."):
            evaluation = Evaluation(request, write_text)
        _announce(evaluation, notes)
        _answer(evaluation, notes)
        results, path = evaluation.finish()
    except KeyboardInterrupt:
        fail("stopped. Finished parts are kept; the same command goes on where this one stopped.", status=1)
    except ChildError as error:
        fail(str(error), error.status)
    except (FolderError, SettingError) as error:
        fail(str(error))
    notes.print(f"Results: {path}")
    if as_json:
        print_json(results)
    else:
        from confident_decoding.evaluation.report import tables

        console = Console()
        (console if console.is_terminal else Console(width=120)).print(*tables(results["results"]), sep="\n")


def _json(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        fail(f"{option} is not JSON: {error.msg}, column {error.colno}, in {text!r}.")
    if not isinstance(value, dict):
        fail(f"{option} must be a JSON object, not {text!r}.")
    return value


def _folder(path: Path) -> Path:
    if not path.is_dir():
        fail(f"--include-path {path}: there is no such folder.")
    return path


def _announce(evaluation: "Evaluation", notes: Console) -> None:
    for name in evaluation.same_as_standard:
        notes.print(f"{name}: is standard decoding by another name, and left out.")
    if evaluation.finished:
        notes.print(f"{evaluation.finished} of {len(evaluation.units)} parts were finished before.")


def _answer(evaluation: "Evaluation", notes: Console) -> None:
    """Let the engines answer, with a bar for all parts and one for the requests of the current one."""
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(bar(notes))
        parts = progress.add_task("parts", total=len(evaluation.units), completed=evaluation.finished)
        requests = progress.add_task("starting", total=None)
        for event in stack.enter_context(contextlib.closing(evaluation.answer())):
            match event["event"]:
                case "engine":
                    progress.reset(requests, description="an engine starts", total=None)
                case "start":
                    progress.reset(requests, description=f"{event['task']}: {event['setting']}", total=None)
                case "progress":
                    progress.update(requests, completed=event["done"], total=event["total"])
                case "unit":
                    progress.advance(parts)
                    notes.print(f"{event['task']}: {event['setting']} done")
