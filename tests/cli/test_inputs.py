"""What commands read; everything wrong is one message that says what and where."""

import json

import pytest
import typer

from confident_decoding.cli.inputs import Prompt, check_model, read_additional_config, read_prompts, shown_name

SWITCH = "enable_multi_layer_entropy_selection"


@pytest.fixture
def refused(capsys):
    """``refused(function, argument)``: the message with which it ends the command."""

    def call(function, argument, status=2):
        with pytest.raises(typer.Exit) as ended:
            function(argument)
        assert ended.value.exit_code == status
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert message.count("\n") == 1
        return message

    return call


def test_every_form_of_a_prompt(tmp_path):
    messages = [{"role": "user", "content": "Why?"}]
    lines = ['"plain"', "", json.dumps({"prompt": "keyed"}), json.dumps({"messages": messages})]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    assert read_prompts(tmp_path / "p.jsonl") == [Prompt(1, "plain"), Prompt(3, "keyed"), Prompt(4, messages=messages)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 3: not JSON"),
        ("3", "line 3: not a prompt"),
        ('""', "line 3: not a prompt"),
        ('{"prompt": 3}', "line 3: not a prompt"),
        ('{"prompt": "a", "temperature": 1}', "line 3: not a prompt"),
        ('{"messages": []}', "line 3: not a prompt"),
        ('{"messages": [{"role": "user"}]}', "line 3: not a prompt"),
        ('{"messages": [{"role": "user", "content": 3}]}', "line 3: not a prompt"),
        ('{"messages": [{"role": "user", "content": {"text": "a"}}]}', "line 3: not a prompt"),
        (r'"a\ud800b"', "line 3: not text (it holds half of a surrogate pair)"),
        (r'{"messages": [{"role": "user", "content": "\udc00"}]}', "line 3: not text"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, refused, line, says):
    (tmp_path / "p.jsonl").write_text(f'"good"\n\n{line}\n"good"\n')
    message = refused(read_prompts, tmp_path / "p.jsonl")
    assert says in message
    assert '{"messages": [{"role": ..., "content": ...}]}' in message


def test_only_a_line_feed_ends_a_line(tmp_path):
    """JSON may hold other line ends as they are, and JavaScript and json.dumps(ensure_ascii=False) write them so."""
    text = "a\u2028b\u2029c\x85d"
    (tmp_path / "p.jsonl").write_bytes(
        f'\ufeff{json.dumps({"prompt": text}, ensure_ascii=False)}\r\n"next"\r\n'.encode()
    )
    assert read_prompts(tmp_path / "p.jsonl") == [Prompt(1, text), Prompt(2, "next")]


def test_a_line_that_is_nested_too_deeply(tmp_path, refused):
    (tmp_path / "p.jsonl").write_text("[" * 100_000)
    assert "line 1: nested too deeply" in refused(read_prompts, tmp_path / "p.jsonl")


def test_no_prompts(tmp_path, refused):
    (tmp_path / "p.jsonl").write_text("\n  \n")
    assert "holds no prompt" in refused(read_prompts, tmp_path / "p.jsonl")
    assert "No such file" in refused(read_prompts, tmp_path / "other.jsonl")
    assert "Is a directory" in refused(read_prompts, tmp_path)
    (tmp_path / "p.jsonl").write_bytes(b'"\xff"')
    assert "not UTF-8" in refused(read_prompts, tmp_path / "p.jsonl")


def test_settings_are_switched_on_unless_they_say_otherwise(tmp_path):
    assert read_additional_config(None) == {SWITCH: True}
    assert read_additional_config('{"p": 0.5, "other_plugin": 1}') == {SWITCH: True, "p": 0.5, "other_plugin": 1}
    assert read_additional_config(f'{{"{SWITCH}": false}}') == {SWITCH: False}
    (tmp_path / "settings.json").write_text('{"select_method": "last-m8"}')
    assert read_additional_config(str(tmp_path / "settings.json")) == {SWITCH: True, "select_method": "last-m8"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("/no/such/file", "neither a JSON object nor a readable file"),
        ("a\0b", "neither a JSON object nor a readable file"),
        ('{"p": 2}', "p=2"),
        ('{"trough_max_layers": 3}', "trough_max_backtrack_layers"),
    ],
)
def test_bad_settings(text, says, capsys):
    with pytest.raises(typer.Exit):
        read_additional_config(text)
    assert says in capsys.readouterr().err


def test_settings_in_a_file_must_be_an_object(tmp_path, refused):
    (tmp_path / "settings.json").write_text("[1]")
    assert "must be a JSON object" in refused(read_additional_config, str(tmp_path / "settings.json"))


def test_models_that_can_be(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights.gguf").write_text("")
    for model in (str(tmp_path), str(tmp_path / "weights.gguf"), "owner/name-7B.v2", "gpt2", "s3://bucket/model"):
        check_model(model)


def test_results_name_a_model_without_its_place(tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    assert {shown_name(model) for model in (".", "../my-model", "../my-model/", str(tmp_path / "my-model"))} == {
        "my-model"
    }
    assert shown_name("owner/name") == "owner/name"


@pytest.mark.parametrize("model", ["./nothing", "/nowhere/at/all", "a/b/c", "~/nothing-here", ""])
def test_models_that_cannot_be(model, refused):
    assert "there is no model at" in refused(check_model, model)


def test_a_name_that_the_system_does_not_take(refused):
    assert "cannot read " + "x" * 300 + ": File name too long" in refused(check_model, "x" * 300)


def test_a_folder_without_a_model(tmp_path, refused):
    assert "without a config.json" in refused(check_model, str(tmp_path))
