"""What cannot work says so, and says what to pass."""

import copy

import pytest
import torch
import transformers
from conftest import SWITCH
from models.row import BASE

import confident_decoding.hf
from confident_decoding.config import ConfidentDecodingConfig, ConfigError
from confident_decoding.hf import UnsupportedModelError
from hf.common import UNLIMITED, greedy, load, padded, random_prompts

PROMPTS = random_prompts((5,))
BOTH = [confident_decoding.hf.generate, confident_decoding.hf.dola_generate]


@pytest.fixture(scope="module")
def model(tiny):
    return load(tiny("LlamaForCausalLM"))


def run(model, custom_generate=confident_decoding.hf.generate, **options):
    return model.generate(**{**padded(PROMPTS), **greedy(4), **options}, custom_generate=custom_generate)


@pytest.mark.parametrize("custom_generate", BOTH)
@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"num_beams": 2, "do_sample": True}, "beam_sample"),
        ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
        ({"assistant_early_exit": 2}, "assisted_generation"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
    ],
)
def test_generation_modes_are_refused_by_name(model, custom_generate, options, mode):
    with pytest.raises(ValueError, match=f"generation mode '{mode}' is not supported"):
        run(model, custom_generate, **options)


@pytest.mark.parametrize("config", [{}, {"p": 0.0}])
def test_an_assistant_model_is_refused(model, config):
    with pytest.raises(ValueError, match=r"generation mode 'assisted_generation' is not supported"):
        run(model, assistant_model=copy.deepcopy(model), confident_config=config)


def test_other_loops_that_run_the_model_again_are_refused(model):
    with pytest.raises(ValueError, match=r"guidance_scale"):
        run(model, guidance_scale=1.5)
    with pytest.raises(ValueError, match=r"generation mode 'dola_generation' is not supported"):
        run(model, dola_layers="high")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"trough_max_backtrack_layer": 3},
            "confident_config is not valid.*did you mean 'trough_max_backtrack_layers'",
        ),
        ({"window": 3}, "unknown keys 'window'. Valid keys: .*select_method"),
        ({"select_method": "first"}, "select_method='first'.*'trough-mK'"),
        ({"select_method": "last-m6"}, "needs more than 6 layers, and this model has 6"),
        ({"p": 2}, "p=2"),
        ({"trough_metrics": True}, "trough_metrics=True needs a server"),
        (ConfidentDecodingConfig(trough_metrics=True), "trough_metrics=True needs a server"),
        ("trough", "a dictionary of its keys, not str"),
    ],
)
def test_bad_settings(model, config, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        run(model, confident_config=config)


def test_settings_may_be_an_object_and_a_switch_that_says_off_is_respected(model):
    off = {SWITCH: False, **UNLIMITED}
    selected = run(model, confident_config=UNLIMITED)
    assert torch.equal(run(model, confident_config=ConfidentDecodingConfig(**UNLIMITED)), selected)
    assert torch.equal(
        run(model, confident_config={"enable_multi_layer_entropy_selection": True, **UNLIMITED}), selected
    )
    stock = model.generate(**padded(PROMPTS), **greedy(4))
    assert not torch.equal(stock, selected)
    assert torch.equal(run(model, confident_config=off), stock)
    assert torch.equal(run(model, confident_config=ConfidentDecodingConfig(**off)), stock)


@pytest.mark.parametrize("custom_generate", BOTH)
def test_depths_need_a_result_to_be_in(model, custom_generate):
    with pytest.raises(ValueError, match=r"output_depths=True needs return_dict_in_generate=True"):
        run(model, custom_generate, output_depths=True)


def test_an_unknown_argument_is_still_an_error(model):
    with pytest.raises(ValueError, match=r"confident_sed"):
        run(model, confident_sed=1)


@pytest.mark.parametrize("seed", [None, "a", 1.5])
def test_a_seed_that_is_no_number(model, seed):
    with pytest.raises(ValueError, match=r"confident_seed=\S+ is not a whole number"):
        run(model, confident_seed=seed, confident_config={"p": 0.5})


def test_states_that_are_not_finite(tiny):
    model = load(tiny("LlamaForCausalLM"))
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(UnsupportedModelError, match=r"the final state of LlamaForCausalLM is not finite"):
        run(model)


def test_a_layer_that_is_several(tiny):
    """Its hooks could not tell at which depth it runs."""
    model = load(tiny("LlamaForCausalLM"))
    model.model.layers[3] = model.model.layers[1]
    with pytest.raises(UnsupportedModelError, match=r"of 6 layers 5 differ"):
        run(model)


@pytest.mark.parametrize("options", [{}, {"confident_config": {"select_method": "last-m8"}}])
def test_an_encoder_decoder_model(options):
    sizes = {"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    with pytest.raises(UnsupportedModelError, match=r"BartForCond.* is an encoder-decoder"):
        model.generate(
            torch.tensor([[5, 6]]), custom_generate=confident_decoding.hf.generate, max_new_tokens=2, **options
        )


@pytest.fixture(scope="module")
def xglm():
    """Its final norm is called ``layer_norm``."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "d_model": 32, "ffn_dim": 64, "num_layers": 4, "attention_heads": 4, "init_std": 0.3}
    return transformers.XGLMForCausalLM(transformers.XGLMConfig(**sizes)).eval()


def test_a_norm_that_is_not_found_may_be_named(xglm):
    with pytest.raises(
        UnsupportedModelError,
        match=r"no final norm found in XGLMForCausalLM. Looked for norm, .* in its XGLMModel. Pass final_norm=",
    ):
        run(xglm)
    named = run(xglm, final_norm="model.layer_norm", confident_config=UNLIMITED)
    assert torch.equal(run(xglm, final_norm=xglm.model.layer_norm, confident_config=UNLIMITED), named)
    with pytest.raises(UnsupportedModelError, match=r"'layer_norm' is not a module of XGLM"):
        run(xglm, final_norm="layer_norm")
    with pytest.raises(UnsupportedModelError, match=r"is not a module of XGLM"):
        run(xglm, final_norm=torch.nn.LayerNorm(32))


def test_a_wrong_norm_is_found_out(model):
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM changes the residual stream.*final_norm="):
        run(model, final_norm="model.layers.3.input_layernorm")


def test_a_norm_that_is_more_than_a_function_of_its_state(tiny):
    changed = load(tiny("LlamaForCausalLM"))
    inner = changed.model.norm.forward

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = changed.model.norm

        def forward(self, states):
            return self.inner(states) * 2

    changed.model.norm = Scaled()
    run(changed)  # a norm of any kind will do

    changed.model.norm = changed.model.norm.inner
    changed.model.norm.forward = lambda states: inner(states) * (1 + 0.1 * states.shape[1])
    with pytest.raises(UnsupportedModelError, match=r"does not give its own final state"):
        run(changed)


class BatchWide(transformers.LlamaForCausalLM):
    """Logits that depend on the number of rows."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * len(out.logits)
        return out


class RowByRow(transformers.LlamaForCausalLM):
    """Logits that need the prompt of each row beside its state."""

    def forward(self, input_ids=None, **kwargs):
        out = super().forward(input_ids=input_ids, **kwargs)
        out.logits = out.logits + torch.stack([ids[-1] * 0.1 for ids in input_ids])[:, None, None]
        return out


class TwoPasses(transformers.LlamaForCausalLM):
    """Calls its decoder twice."""

    def forward(self, input_ids=None, past_key_values=None, **kwargs):
        self.model(input_ids=input_ids)
        return super().forward(input_ids=input_ids, past_key_values=past_key_values, **kwargs)


def odd(kind):
    torch.manual_seed(0)
    return kind(transformers.LlamaConfig(**{**BASE, "tie_word_embeddings": False})).eval()


@pytest.mark.parametrize(("kind", "rows"), [(BatchWide, 1), (RowByRow, 3)])
def test_a_head_that_cannot_be_reproduced_may_be_passed(kind, rows):
    model = odd(kind)
    inputs = padded(random_prompts()[:rows])
    with pytest.raises(
        UnsupportedModelError, match=rf"logits of {kind.__name__} could not be reproduced.*output_head="
    ):
        run(model, **inputs)
    with pytest.raises(UnsupportedModelError, match=r"could not be reproduced"):
        run(model, **inputs, output_head=lambda states: model.lm_head(states) * 3)
    if kind is BatchWide:
        tokens = run(model, **inputs, output_head=model.lm_head, confident_config=UNLIMITED)
        twin = transformers.LlamaForCausalLM(model.config).eval()
        twin.load_state_dict(model.state_dict())
        assert torch.equal(tokens, run(twin, **inputs, confident_config=UNLIMITED))


def test_a_decoder_that_runs_twice_is_refused():
    with pytest.raises(
        UnsupportedModelError,
        match=r"TwoPasses called LlamaModel 2 times.*Pass output_head=",
    ):
        run(odd(TwoPasses))


def test_a_compiled_model_is_refused(tiny):
    model = load(tiny("LlamaForCausalLM"))
    model.forward = torch.compile(model.forward, backend="eager")
    model.generate(**padded(PROMPTS), **greedy(2))
    with pytest.raises(UnsupportedModelError, match=r"compiled model hides it: use it uncompiled"):
        run(model)
