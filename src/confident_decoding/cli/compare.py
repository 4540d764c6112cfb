"""``confident-decoding compare``: standard and confident answers side by side."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from confident_decoding.cli import compare_report, options
from confident_decoding.cli.aside import end_politely, output_aside
from confident_decoding.cli.inputs import (
    Prompt,
    check_model,
    fail,
    read_additional_config,
    read_prompts,
    require,
    shown_name,
)
from confident_decoding.cli.outputs import check_target, print_json, write_text
from confident_decoding.cli.pairs import Answer, Pair, summary
from confident_decoding.cli.progress import bar, spinner
from confident_decoding.cli.rehearsal import check_lengths, rehearse
from confident_decoding.cli.requirements import require_plugin, require_vllm
from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.engines.counting import counting
from confident_decoding.engines.options import engine_args, require_active


def compare(
    model: options.Model,
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS",
            help='A JSON-lines file; each line a string, {"prompt": "..."}, or {"messages": [{"role": "user", '
            '"content": "..."}]} for the chat template.',
            show_default=False,
        ),
    ],
    additional_config: options.AdditionalConfig = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of both answers, where the temperature is not 0.")] = 0,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write one self-contained page.", show_default=False),
    ] = None,
    vllm: options.EngineOptions = "",
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Answer each prompt twice, in the standard way and with Confident Decoding, and show what changed.

    Both answers come from one vLLM engine with the plugin on: the standard ones are requests with
    `confident_p: 0`. Changed parts are in colour. Two shares say how much changed:

    - by position: positions of the longer answer where the two do not have the same token. After the first
      difference nearly all positions differ, also where the same words only moved.

    - aligned: tokens of both answers that are in no common run when the two are aligned, as a text comparison does.

    The status is 0 if the comparison was made, 1 if something failed, 2 for wrong use.
    """
    values = read_additional_config(additional_config)
    _check_settings(values)
    check_model(model)
    asked = read_prompts(prompts)
    if html is not None:
        require("--html", "jinja2", extra="analysis")
        check_target(html)
    require_vllm()
    end_politely()
    # The engine in this process: its errors are this command's, not a line in another process's log.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with output_aside(verbose) as terminal:
        engine = start(model, vllm, values, asked, terminal)
        sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        with bar(terminal) as progress:
            task = progress.add_task("", total=2 * len(asked))

            def both(done: int, name: str) -> None:
                progress.update(task, completed=done, description=f"{name} answers")

            standard = answers(
                engine, asked, {**sampling, "extra_args": {"confident_p": 0}}, lambda n: both(n, "standard")
            )
            confident = answers(engine, asked, sampling, lambda n: both(len(asked) + n, "confident"))
        decode = engine.get_tokenizer().decode
        pairs = [Pair.of(*pair, decode) for pair in zip(asked, standard, confident, strict=True)]
    result = {
        "model": shown_name(model),
        "additional_config": values,
        "sampling": sampling,
        "summary": summary(pairs),
        "prompts": [pair.plain() for pair in pairs],
    }
    if html is not None:
        write_text(html, compare_report.page(result, pairs))
    if as_json:
        print_json(result)
    else:
        compare_report.show(result, pairs)


def _check_settings(values: dict[str, Any]) -> None:
    config = ConfidentDecodingConfig.from_additional_config(values)
    if not config.enable_multi_layer_entropy_selection or config.p == 0:
        fail(
            "--additional-config asks for standard decoding, so there is nothing to compare. "
            "Leave the switch out or true, and p greater than 0."
        )


def start(
    model: str, options: str, additional_config: dict[str, Any], prompts: Sequence[Prompt], terminal: Console
) -> Any:
    """An ``LLM`` with the plugin on, for prompts that it can take.

    Raises:
        WrongUseError: An option or a prompt cannot be used.
        RuntimeError: The plugin is not loaded.
        Exception: vLLM cannot serve the model, in its own words.
    """
    with spinner(terminal, f"Starting vLLM with {model} ..."):
        from vllm import LLM

        # A prompt's second answer would otherwise begin from cached blocks, in chunks of another size.
        arguments = engine_args(model, options, additional_config, enable_prefix_caching=False)
        require_plugin()
        require_active(arguments)
        lengths = rehearse(arguments, prompts)
        engine = LLM.from_engine_args(arguments)
    # With `--max-model-len auto` the context is what the memory allows, which is known now.
    check_lengths(prompts, lengths, engine.llm_engine.vllm_config.model_config.max_model_len)
    return engine


def answers(
    engine: Any, prompts: Sequence[Prompt], sampling: dict[str, Any], progress: Callable[[int], None]
) -> list[Answer]:
    """One answer to each prompt, in order; ``progress`` is told how many there are."""
    from vllm import SamplingParams

    progress(0)
    parameters = SamplingParams(**sampling)
    texts = [number for number, prompt in enumerate(prompts) if prompt.messages is None]
    chats = [number for number, prompt in enumerate(prompts) if prompt.messages is not None]
    found: dict[int, Answer] = {}
    if texts:
        count = counting(lambda done, _: progress(done))
        outputs = engine.generate([prompts[n].prompt for n in texts], parameters, use_tqdm=count)
        found |= zip(texts, map(Answer.of, outputs), strict=True)
    if chats:
        count = counting(lambda done, _: progress(len(texts) + done))
        outputs = engine.chat([prompts[n].messages for n in chats], parameters, use_tqdm=count)
        found |= zip(chats, map(Answer.of, outputs), strict=True)
    return [found[number] for number in range(len(prompts))]
