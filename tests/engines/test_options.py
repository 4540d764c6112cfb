"""Options of `vllm serve` as commands take them."""

import pytest

from confident_decoding.engines.options import WrongUseError, engine_args


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--model other", "--model belongs elsewhere: use MODEL"),
        ("--additional-config {}", "--additional-config belongs elsewhere: use --additional-config of this command"),
        ("--additional_config={}", "--additional-config belongs elsewhere"),
        ("--additional-conf {}", "--additional-config belongs elsewhere"),
        ("--additional-config.p 0.5", "--additional-config belongs elsewhere"),
        ("--no-such-option 3", "does not know --no-such-option 3"),
        ("--max-model-len many", "many"),
        ("'--dtype", "no closing quotation"),
        ("--compilation-config.mode", "--compilation-config.mode has no value"),
    ],
)
def test_options_that_cannot_be_are_told(options, says):
    with pytest.raises(WrongUseError) as refused:
        engine_args("m", options, {})
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"--vllm {options!r}: ")


@pytest.mark.parametrize("options", ["--max-model-len 64", "--max_model_len=64", "--max-model-l 64"])
def test_every_spelling_of_vllm_serve_is_read(options):
    assert engine_args("m", options, {}).max_model_len == 64
    assert int(engine_args("m", "-O0", {}).optimization_level) == 0
    assert engine_args("m", "--compilation-config.mode 0", {}).compilation_config.mode == 0


def test_what_options_do_not_say_is_the_commands():
    config = {"p": 0.5}
    found = engine_args("m", "--max-model-len 64", config, max_model_len=8, max_num_seqs=3)
    assert (found.model, found.additional_config, found.max_model_len, found.max_num_seqs) == ("m", config, 64, 3)


def test_a_name_that_is_not_on_this_machine(monkeypatch):
    """vLLM looks it up where it may not ask a hub."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WrongUseError, match=r"^the model 'no/such-model' cannot be read: "):
        engine_args("no/such-model", "", {})
