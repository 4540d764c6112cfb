"""Prompts that cannot run are named by their lines before weights are loaded, and counted as vLLM counts them."""

import json

import pytest
from transformers import AutoTokenizer

from confident_decoding.cli.inputs import read_prompts
from confident_decoding.cli.rehearsal import SHOWN, check_lengths, rehearse
from confident_decoding.engines.options import WrongUseError, engine_args

CONTEXT = 40


def chat(text):
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def counted(tiny_text, tmp_path):
    """``counted(*lines)``: tokens of the prompts in a file of them."""

    def call(*lines, options=f"--max-model-len {CONTEXT}"):
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        return rehearse(engine_args(tiny_text, options, {}), read_prompts(path))

    return call


@pytest.fixture
def refused(counted):
    def call(*lines, **options):
        with pytest.raises(WrongUseError) as error:
            counted(*lines, **options)
        return str(error.value)

    return call


def test_counts_what_the_tokenizer_gives(counted, tiny_text):
    tokenizer = AutoTokenizer.from_pretrained(tiny_text)
    text, asked = "the rain in Spain", chat("Why is that?")
    template = tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True)["input_ids"]
    assert counted(text, asked) == [len(tokenizer(text)["input_ids"]), len(template)]


def words(tiny_text, tokens):
    """A text of exactly so many tokens."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_text)
    text = "".join(chr(ord("A") + n % 26) for n in range(tokens))
    assert len(tokenizer(text)["input_ids"]) == tokens
    return text


def test_a_prompt_may_fill_the_context_but_for_one_token(counted, refused, tiny_text):
    assert counted(words(tiny_text, CONTEXT - 1)) == [CONTEXT - 1]
    for tokens in (CONTEXT, CONTEXT + 1, 20 * CONTEXT):
        message = refused("short", words(tiny_text, tokens))
        assert message.startswith(f"1 of 2 prompts cannot run. line 2: {tokens} tokens, but the context of 40 has room")
        assert message.endswith('Shorten what is too long, or give a longer context (--vllm "--max-model-len N").')


def test_all_that_is_wrong_is_in_one_message(refused):
    odd = {"messages": [{"role": "user", "content": [{"type": "smell", "text": "x"}]}]}
    message = refused("good", odd, "x" * 500, chat("y" * 500))
    assert message.startswith("3 of 4 prompts cannot run. line 2: ")
    assert "smell" in message
    assert "; line 3: 500 tokens" in message
    assert "; line 4: " in message


def test_lines_are_those_of_the_file(tiny_text, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a"\n\n\n' + json.dumps("x" * 500) + "\n")
    with pytest.raises(WrongUseError, match="line 4: 500 tokens"):
        rehearse(engine_args(tiny_text, "--max-model-len 40", {}), read_prompts(path))


def test_a_message_names_ten_lines_at_most(refused):
    message = refused(*["x" * 500] * (SHOWN + 3))
    assert f"line {SHOWN}: " in message
    assert f"line {SHOWN + 1}: " not in message
    assert "; and 3 more." in message


def test_a_context_that_only_the_engine_knows_is_checked_again(counted, tmp_path):
    lengths = counted("short", "a bit longer than that")
    prompts = read_prompts(tmp_path / "prompts.jsonl")
    check_lengths(prompts, lengths, max(lengths) + 1)
    with pytest.raises(WrongUseError, match=r"^1 of 2 prompts cannot run\. line 2: "):
        check_lengths(prompts, lengths, max(lengths))


def test_a_prompt_without_tokens(tmp_path):
    (tmp_path / "p.jsonl").write_text('"\\u0000"\n')
    with pytest.raises(WrongUseError, match=r"^1 of 1 prompts cannot run\. line 1: no token is left of it\.$"):
        check_lengths(read_prompts(tmp_path / "p.jsonl"), [0], 40)


def test_a_model_without_a_chat_template(tiny, refused, tmp_path):
    import shutil

    from models.tokenizers import add_tokenizer

    folder = add_tokenizer(shutil.copytree(tiny("LlamaForCausalLM"), tmp_path / "model"))
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "p.jsonl").write_text(json.dumps(chat("hi")))
    with pytest.raises(WrongUseError, match=r"line 1: .*chat template"):
        rehearse(engine_args(str(folder), "", {}), read_prompts(tmp_path / "p.jsonl"))


def test_the_engines_arguments_stay_as_they_are(tiny_text, tmp_path):
    (tmp_path / "p.jsonl").write_text('"a"\n')
    arguments = engine_args(tiny_text, "", {})
    before = repr(arguments)
    rehearse(arguments, read_prompts(tmp_path / "p.jsonl"))
    assert repr(arguments) == before
