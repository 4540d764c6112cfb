"""Prompts as vLLM reads them, before weights are loaded: each that cannot run is named by its line."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confident_decoding.cli.inputs import Prompt
from confident_decoding.engines.options import WrongUseError, text_of

SHOWN = 10
"""Lines that a message names."""


def rehearse(arguments: Any, prompts: Sequence[Prompt]) -> list[int]:
    """Tokens of each prompt, its chat template applied, as an engine of ``arguments`` will have them.

    Args:
        arguments: vLLM's ``EngineArgs``; left as they are.
        prompts: Of a file.

    Raises:
        WrongUseError: Some are too long, have no token, or vLLM cannot read them; the message names their lines.
        Exception: vLLM refuses the arguments, in its own words.
    """
    from vllm.renderers import renderer_from_config
    from vllm.usage.usage_lib import UsageContext

    config = copy.deepcopy(arguments).create_engine_config(UsageContext.LLM_CLASS)
    tokens = _reader(config.model_config, renderer_from_config(config))
    lengths, problems = [], {}
    for prompt in prompts:
        try:
            lengths.append(tokens(prompt))
        except Exception as error:  # templates and processors raise what they like
            lengths.append(0)
            problems[prompt.line] = text_of(error)
    check_lengths(prompts, lengths, config.model_config.max_model_len, problems)
    return lengths


def check_lengths(
    prompts: Sequence[Prompt], lengths: Sequence[int], longest: int, problems: Mapping[int, str] | None = None
) -> None:
    """Whether all prompts fit the context, with one token to come.

    Args:
        prompts: Of a file.
        lengths: Tokens of each.
        longest: Tokens of the context.
        problems: Lines that something else is wrong with, and what.

    Raises:
        WrongUseError: They do not, or there are problems.
    """
    found = dict(problems or {})
    too_long = False
    for prompt, length in zip(prompts, lengths, strict=True):
        if prompt.line in found:
            continue
        if length >= longest:
            found[prompt.line] = (
                f"{length} tokens, but the context of {longest} has room for {longest - 1} and an answer"
            )
            too_long = True
        elif not length:
            found[prompt.line] = "no token is left of it"
    if not found:
        return
    told = [f"line {line}: {what.rstrip('.')}" for line, what in sorted(found.items())]
    rest = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    remedy = ' Shorten what is too long, or give a longer context (--vllm "--max-model-len N").' if too_long else ""
    raise WrongUseError(f"{len(told)} of {len(prompts)} prompts cannot run. {'; '.join(told[:SHOWN])}{rest}.{remedy}")


def _reader(model_config: Any, renderer: Any) -> Callable[[Prompt], int]:
    """What counts a prompt's tokens the way that ``LLM.generate`` and ``LLM.chat`` read it, however many they are."""
    from vllm.renderers import ChatParams
    from vllm.renderers.inputs.preprocess import parse_model_prompt
    from vllm.utils.mistral import is_mistral_tokenizer

    text, chat = (
        dataclasses.replace(params, max_total_tokens=None)
        for params in (renderer.default_cmpl_tok_params, renderer.default_chat_tok_params)
    )
    whole = is_mistral_tokenizer(renderer.tokenizer) or model_config.enable_prompt_embeds
    template = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": whole})

    def tokens(prompt: Prompt) -> int:
        if prompt.messages is None:
            (read,) = renderer.render_cmpl([parse_model_prompt(model_config, prompt.prompt)], text)
        else:
            _, (read,) = renderer.render_chat([copy.deepcopy(prompt.messages)], template, chat)
        return len(read["prompt_token_ids"])

    return tokens
