"""The OpenAI endpoints of a real ``vllm serve`` with the switch on: tools, reasoning, streams, samples, beams, aborts.

The model is random and has a tokenizer of its own. Grammars steer what must be there for a parser to find; the
selection decides among what is left, which is compared with transformers, token for token.
"""

import json

import jsonschema
import pytest
import torch
from conftest import on
from models.tokenizers import END_OF_THINKING
from openai import OpenAI
from oracle import TransformersOracle

from demo.server import running
from plugin.beams import search
from plugin.checks import first_difference, follow
from plugin.grammars import mask
from plugin.processors import log_softmax, logit_bias
from plugin.test_server import SERVER_ENV

pytestmark = pytest.mark.server

OPTIONS = (
    *("--enforce-eager", "--max-model-len", "512", "--dtype", "float32", "--served-model-name", "m"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_v3"),
    "--structured-outputs-config",
    json.dumps({"backend": "xgrammar", "disable_any_whitespace": True, "enable_in_reasoning": True}),
)
# Tool calls by the JSON schema of the tools, which is known here.
ENV = {**SERVER_ENV, "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}
MESSAGES = [{"role": "user", "content": "what is the weather in oslo"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[a-z]{3,10}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
ALARM = {
    "type": "object",
    "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}, "loud": {"type": "boolean"}},
    "required": ["hour", "loud"],
    "additionalProperties": False,
}
PARAMETERS = {"get_weather": WEATHER, "set_alarm": ALARM}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in PARAMETERS.items()]
ONE_CALL = {  # as vLLM derives it from the tools
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "items": {
        "type": "object",
        "anyOf": [
            {
                "properties": {"name": {"type": "string", "enum": [n]}, "parameters": p},
                "required": ["name", "parameters"],
            }
            for n, p in PARAMETERS.items()
        ],
    },
}
IN_TAGS = r'<tool_call>\{"name":"get_weather","arguments":\{"city":"[a-z]{3,10}","days":[1-9]\}\}</tool_call>'
THOUGHT = rf"[a-z]{{6}}{END_OF_THINKING}[a-z]{{9}}"
THINKING_ID = 6
# Name: (what the request has beside the messages, the grammar that its tokens follow, the bias on them).
CHATS = {
    "plain": ({"max_tokens": 24, "extra": {"ignore_eos": True}}, None, {}),
    "required": (
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 160},
        ("json", ONE_CALL),
        {},
    ),
    "named": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "max_tokens": 160},
        ("json", WEATHER),
        {},
    ),
    "auto": (
        {"tools": TOOLS, "tool_choice": "auto", "max_tokens": 160, "extra": {"structured_outputs": {"regex": IN_TAGS}}},
        ("regex", IN_TAGS),
        {},
    ),
    "reasoning": (
        {
            "max_tokens": 64,
            "logit_bias": {str(THINKING_ID): 50},
            "extra": {"structured_outputs": {"regex": THOUGHT}, "chat_template_kwargs": {"thinking": True}},
        },
        ("regex", THOUGHT),
        {THINKING_ID: 50},
    ),
    "response format": (
        {
            "max_tokens": 160,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "alarm", "schema": ALARM, "strict": True},
            },
        },
        ("json", ALARM),
        {},
    ),
}
TEXT = {"model": "m", "prompt": "the sea is", "temperature": 0, "max_tokens": 24}
BEAM_TOKENS = 8
IDS = {"return_token_ids": True}


def chat(client, name, p, **options):
    asked = dict(CHATS[name][0])
    extra = {**asked.pop("extra", {}), **IDS, "vllm_xargs": {"confident_p": p}}
    return client.chat.completions.create(
        model="m", messages=MESSAGES, temperature=0, extra_body=extra, **asked, **options
    )


def whole(reply):
    """What a client makes of a reply: reasoning, content, the names and arguments of calls, whatever their spaces."""
    (choice,) = reply.choices
    message = choice.message
    return {
        "reasoning": getattr(message, "reasoning", None),
        "content": message.content or None,
        "calls": [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()],
        "finish": choice.finish_reason,
        "tokens": choice.token_ids,
        "prompt": reply.prompt_token_ids,
    }


def streamed(chunks):
    """The same, of a stream; and how many chunks it came in."""
    found = {"reasoning": "", "content": "", "calls": {}, "finish": None, "tokens": [], "prompt": None}
    count = 0
    for chunk in chunks:
        count += 1
        found["prompt"] = found["prompt"] or getattr(chunk, "prompt_token_ids", None)
        for choice in chunk.choices:
            found["tokens"] += getattr(choice, "token_ids", None) or []
            found["finish"] = choice.finish_reason or found["finish"]
            found["reasoning"] += getattr(choice.delta, "reasoning", None) or ""
            found["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                name, arguments = found["calls"].get(call.index, ("", ""))
                found["calls"][call.index] = (
                    name + (call.function.name or ""),
                    arguments + (call.function.arguments or ""),
                )
    calls = [found["calls"][index] for index in sorted(found["calls"])]
    found["calls"] = [(name, json.loads(arguments)) for name, arguments in calls]
    return {**found, "reasoning": found["reasoning"] or None, "content": found["content"] or None}, count


@pytest.fixture(scope="module")
def answers(tiny_text, tmp_path_factory):
    log = tmp_path_factory.mktemp("server-features") / "log.txt"
    found = {}
    with running(tiny_text, log, on(), *OPTIONS, env=ENV) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for name in CHATS:
            for p in (0, 1):
                found[name, p] = whole(chat(client, name, p))
            found[name, "stream"] = streamed(chat(client, name, 1, stream=True))
        complete = client.completions.create
        extra = {**IDS, "ignore_eos": True}
        found["scored"] = complete(**TEXT, logprobs=5, extra_body=extra)
        chunks = list(complete(**TEXT, stream=True, extra_body=extra))
        with complete(**{**TEXT, "max_tokens": 400}, stream=True, extra_body=extra) as stream:
            found["left"] = [next(stream).choices[0].text for _ in range(3)]
        found["afterwards"] = complete(**TEXT, logprobs=5, extra_body=extra)
        found["streamed"] = chunks
        sampled = {**TEXT, "temperature": 0.8, "seed": 5, "extra_body": extra}
        found["several"] = complete(**sampled, n=3)
        found["single"] = [complete(**{**sampled, "seed": seed}) for seed in (5, 6, 7)]
        found["beams"] = complete(
            **{**TEXT, "max_tokens": BEAM_TOKENS}, n=2, extra_body={**extra, "use_beam_search": True}
        )
    found["log"] = log.read_text()
    return found


@pytest.fixture(scope="module")
def oracle(tiny_text):
    return TransformersOracle(tiny_text, torch.float32)


@pytest.mark.parametrize("p", [0, 1])
@pytest.mark.parametrize("name", CHATS)
def test_the_tokens_of_a_chat_are_the_selected_layers(name, p, answers, oracle, tiny_text):
    _, grammar, bias = CHATS[name]
    answer = answers[name, p]
    allowed = mask(tiny_text, *grammar) if grammar else lambda logits, _: logits

    def process(logits, generated):
        return logit_bias(allowed(logits, generated), bias)

    window = 5 if p else 0
    assert follow(oracle, answer["prompt"], answer["tokens"], process, window=window) is None, "a near tie"
    assert first_difference(oracle, answer["prompt"], answer["tokens"], process, window=5 - window) is not None


@pytest.mark.parametrize("name", CHATS)
def test_a_stream_adds_up_to_the_reply(name, answers):
    found, chunks = answers[name, "stream"]
    assert found == answers[name, 1]
    assert chunks > 4


@pytest.mark.parametrize("p", [0, 1])
@pytest.mark.parametrize("name", ["required", "named", "auto"])
def test_tool_calls_have_the_arguments_of_their_schema(name, p, answers, tiny_text):
    from transformers import AutoTokenizer

    answer = answers[name, p]
    ((called, arguments),) = answer["calls"]
    jsonschema.validate(arguments, PARAMETERS[called])
    assert answer["content"] is None
    assert answer["finish"] == ("tool_calls" if name != "named" else "stop")
    # And they are what was generated.
    text = AutoTokenizer.from_pretrained(tiny_text).decode(answer["tokens"], skip_special_tokens=True)
    assert json.dumps(arguments, separators=(",", ":")) in text


@pytest.mark.parametrize("p", [0, 1])
def test_reasoning_and_answer_are_told_apart(p, answers, tiny_text):
    from transformers import AutoTokenizer

    answer = answers["reasoning", p]
    text = AutoTokenizer.from_pretrained(tiny_text).decode(answer["tokens"], skip_special_tokens=True)
    assert len(answer["reasoning"]) == 6
    assert text == f"{answer['reasoning']}{END_OF_THINKING}{answer['content']}"


def test_a_response_format_is_kept(answers):
    for p in (0, 1):
        jsonschema.validate(json.loads(answers["response format", p]["content"]), ALARM)


def test_logprobs_of_a_completion_are_the_selected_layers(answers, oracle, tiny_text):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_text)
    (choice,) = answers["scored"].choices
    prompt = tokenizer(TEXT["prompt"]).input_ids
    assert follow(oracle, prompt, choice.token_ids, window=5) is None
    rows = oracle.select([*prompt, *choice.token_ids[:-1]], len(prompt) - 1, window=5)
    for (logits, *_), score, token in zip(rows, choice.logprobs.token_logprobs, choice.token_ids, strict=True):
        assert score == pytest.approx(log_softmax(logits)[token], abs=2e-4)


def test_a_streamed_completion_is_the_whole_one_and_a_stream_that_is_left_disturbs_nothing(answers):
    (scored,), (afterwards,) = answers["scored"].choices, answers["afterwards"].choices
    assert "".join(chunk.choices[0].text for chunk in answers["streamed"]) == scored.text
    assert [token for chunk in answers["streamed"] for token in chunk.choices[0].token_ids or ()] == scored.token_ids
    assert scored.text.startswith("".join(answers["left"]))
    assert afterwards.token_ids == scored.token_ids
    assert afterwards.logprobs.token_logprobs == pytest.approx(scored.logprobs.token_logprobs, abs=1e-4)


def test_several_samples_are_those_of_single_requests(answers):
    several = [choice.token_ids for choice in answers["several"].choices]
    assert several == [reply.choices[0].token_ids for reply in answers["single"]]
    assert len({tuple(tokens) for tokens in several}) == 3


def test_beams_of_a_completion_are_the_selected_layers(answers, oracle, tiny_text):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_text)
    expected, closest = search(oracle, tokenizer(TEXT["prompt"]).input_ids, width=2, tokens=BEAM_TOKENS, window=5)
    assert closest > 1e-3, "a near tie"
    assert [choice.text for choice in answers["beams"].choices] == [tokenizer.decode(ids) for ids, _ in expected]
