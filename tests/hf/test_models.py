"""Methods and architectures on tiny checkpoints, each against the float64 oracle."""

import oracle
import pytest
import torch
import transformers
from models import images
from models.checkpoints import CHECKPOINTS, GPU_ONLY, build
from models.quantised import QUANTISED
from plugin.checks import first_difference

import confident_decoding.hf
from confident_decoding.config import ConfidentDecodingConfig
from hf.common import TIE, UNLIMITED, greedy, load, padded, random_prompts, rows_with

TOKENS = 12
METHODS = {
    "trough": {},
    "trough-m1": {"select_method": "trough-m1"},
    "trough-p1": {"select_method": "trough-p1"},
    "trough-m2 of 3": {"select_method": "trough-m2", "trough_max_backtrack_layers": 3},
    "last-m1": {"select_method": "last-m1"},
    "last-m5": {"select_method": "last-m5"},
    "ratio 0.5": {"trough_backtrack_ratio": 0.5},
    "unlimited": UNLIMITED,
    "two": {"trough_max_backtrack_layers": 2},
    "minimal entropy": {"trough_min_entropy": 4.0},
}
# One of each thing that a class may do around its decoder.
ARCHITECTURES = [
    "LlamaForCausalLM",
    "Gemma2ForCausalLM",  # soft cap
    "Gemma4ForCausalLM-ple",  # soft cap, inputs per layer
    "GraniteForCausalLM",  # scale
    "MiniCPM3ForCausalLM",  # rescales the final state
    "Cohere2MoeForCausalLM",  # scale, parallel layers, experts
    "Qwen3MoeForCausalLM",  # experts
    "Qwen3NextForCausalLM",  # linear attention
    "MuseGlimmerForConditionalGeneration",  # scale and soft cap, multimodal
    "Llama4ForConditionalGeneration",  # a language model within, which has the head
]
# vLLM's layouts of a quantised Llama are not transformers'.
NOT_HERE = {*GPU_ONLY, *QUANTISED}
THE_OTHERS = [tag for tag in CHECKPOINTS if tag not in {*ARCHITECTURES, *NOT_HERE, "GPT2LMHeadModel"}]


@pytest.fixture(scope="module")
def loaded(tiny):
    """``loaded(tag)``: the model and its oracle."""
    made = {}

    def get(tag):
        if tag not in made:
            path = tiny(tag)
            made[tag] = load(path), oracle.TransformersOracle(path, torch.float32)
        return made[tag]

    return get


def generated(model, prompts, config, **options):
    inputs = padded(prompts)
    out = model.generate(
        **inputs,
        custom_generate=confident_decoding.hf.generate,
        confident_config=config,
        return_dict_in_generate=True,
        output_depths=True,
        **{**greedy(TOKENS), **options},
    )
    depths = torch.stack(out.confident_depths, dim=1).tolist()
    return out.sequences[:, inputs["input_ids"].shape[1] :].tolist(), depths


def settings(plan):
    return {
        "window": plan.window,
        "shift": plan.shift,
        "candidates": plan.candidates,
        "fixed": plan.fixed_depth,
        "min_entropy": plan.min_entropy,
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_method_follows_the_oracle(loaded, method):
    model, reference = loaded("LlamaForCausalLM")
    prompts = random_prompts()
    plan = ConfidentDecodingConfig(**METHODS[method]).resolve(reference.num_layers)
    tokens, depths = generated(model, prompts, METHODS[method])
    for prompt, ours, taken in zip(prompts, tokens, depths, strict=True):
        assert first_difference(reference, prompt, ours, **settings(plan)) is None
        rows = reference.select([*prompt, *ours[:-1]], len(prompt) - 1, **settings(plan))
        assert [d for d, row in zip(taken, rows, strict=True) if row[2] > TIE] == [r[1] for r in rows if r[2] > TIE]


@pytest.mark.parametrize("tag", [*ARCHITECTURES, *(pytest.param(tag, marks=pytest.mark.slow) for tag in THE_OTHERS)])
def test_every_architecture_follows_the_oracle(loaded, tag):
    model, reference = loaded(tag)
    for prompt in random_prompts():
        (tokens,), (depths,) = generated(model, [prompt], UNLIMITED)
        difference = first_difference(reference, prompt, tokens, window=reference.num_layers - 1)
        assert difference is None or min(difference["gap"], difference["margin"]) < TIE
        assert any(depths)


def test_a_model_without_a_reading_of_its_own_in_the_oracle(tiny):
    """GPT-2: learned positions, ``transformer.h``, ``ln_f`` with a bias; vLLM's classes cannot run it."""
    model = load(tiny("GPT2LMHeadModel"))
    (prompt,) = random_prompts((9,))
    (tokens,), (depths,) = generated(model, [prompt], {"select_method": "trough", **UNLIMITED})
    with torch.inference_mode():
        out = model(torch.tensor([[*prompt, *tokens[:-1]]]), output_hidden_states=True)
        streams = out.hidden_states[:0:-1]
        states = [streams[0], *(model.transformer.ln_f(stream) for stream in streams[1:])]
        logits = torch.cat([model.lm_head(state) for state in states]).double().numpy()[:, len(prompt) - 1 :]
    for at, (token, depth) in enumerate(zip(tokens, depths, strict=True)):
        assert depth == oracle.trough([oracle.entropy(row) for row in logits[:, at]], 5)
        assert token == logits[depth, at].argmax()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_proven_and_p1_differs_from_p0(tiny, dtype):
    model = load(tiny("Gemma2ForCausalLM")).to(dtype)
    tokens, depths = generated(model, random_prompts(), UNLIMITED)
    stock, never = generated(model, random_prompts(), {"p": 0.0})
    assert any(map(any, depths))
    assert tokens != stock
    assert not any(map(any, never))


@pytest.mark.parametrize(
    "tag",
    ["Qwen3VLForConditionalGeneration", "Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration"],
)
def test_a_real_image(tag, tmp_path):
    build(tag, tmp_path)
    images.add_processor(tag, tmp_path)
    family = images.FAMILIES[tag]
    processor = getattr(transformers, family.processor).from_pretrained(tmp_path)
    encoded = processor(text=f"What does {family.prompt} show?", images=images.image(), return_tensors="pt")
    encoded["pixel_values"] = encoded["pixel_values"].float()  # Llama 4's are bfloat16
    ids = encoded["input_ids"][0].tolist()
    model, reference = load(tmp_path), oracle.TransformersOracle(tmp_path, torch.float32)
    images.record_entering_streams(reference.model)

    tower_runs = []
    tower = next(m for name, m in model.named_modules() if name.endswith(("visual", "vision_tower", "vision_model")))
    tower.register_forward_hook(lambda *_: tower_runs.append(1))
    out = model.generate(
        **encoded,
        custom_generate=confident_decoding.hf.generate,
        confident_config=UNLIMITED,
        return_dict_in_generate=True,
        output_depths=True,
        **greedy(TOKENS),
    )
    if tag != "Llama4ForConditionalGeneration":  # its top-level forward runs the encoder before transformers 5.19
        assert len(tower_runs) == 1, "candidates go through the head, not through the model"

    sequence = out.sequences[0].tolist()
    more = {
        key: torch.nn.functional.pad(value, (0, TOKENS - 1)) if key.endswith("token_type_ids") else value
        for key, value in encoded.items()
        if key not in ("input_ids", "attention_mask")
    }
    rows = rows_with(reference, sequence[:-1], len(ids) - 1, **more)
    depths = [int(d) for d in out.confident_depths]
    assert any(depths)
    judged = 0
    for token, depth, row in zip(sequence[len(ids) :], depths, rows, strict=True):
        if row.gap > TIE:
            assert (depth, token) == (row.depth, row.logits.argmax())
            judged += 1
    assert judged > TOKENS / 2
