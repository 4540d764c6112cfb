"""What a start shows and refuses, by architecture. (Every family against transformers: tests/models/.)"""

import pytest
import torch
from conftest import greedy, on, tiny_engine
from models.checkpoints import VOCAB
from odd_architectures import ODD
from oracle import TransformersOracle

from plugin.checks import follow

pytestmark = pytest.mark.engine

SUPPORTED = [
    "LlamaForCausalLM",
    "LlamaForCausalLM-tied",
    "LlamaForCausalLM-oddvocab",
    "MixtralForCausalLM",  # its capture is ours
]
SETTINGS = {
    "trough": (on(), {"window": 5}),
    "trough-m1": (
        on(select_method="trough-m1", trough_max_backtrack_layers=4),
        {"window": 3, "shift": 1, "candidates": 4},
    ),
    "ratio-0.5": (on(trough_backtrack_ratio=0.5), {"window": 1, "candidates": 3}),
    # About half of these tokens' final entropies are below it.
    "min-entropy": (on(trough_min_entropy=5.58), {"window": 5, "min_entropy": 5.58}),
    "last-m3": (on(select_method="last-m3"), {"window": 0, "fixed": 3}),
    "standard": ({}, {"window": 0}),
}


def some_prompts(vocab):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in (5, 17, 40)]


@pytest.fixture(scope="module")
def outputs(run_engines, tiny):
    jobs, keys = [], []
    for tag in SUPPORTED:
        for name, (additional, _) in SETTINGS.items():
            if name not in ("trough", "standard") and tag != "LlamaForCausalLM":
                continue  # the method is no matter of the architecture
            keys.append((tag, name))
            vocab = 500 if "oddvocab" in tag else VOCAB
            jobs.append(
                {
                    "engine": tiny_engine(tiny(tag), additional),
                    "probe": True,
                    "calls": [{"prompts": some_prompts(vocab), "sampling": greedy(12, prompt_logprobs=0)}],
                }
            )
    return dict(zip(keys, run_engines(jobs), strict=True))


@pytest.mark.parametrize("tag", SUPPORTED)
def test_matches_transformers(tag, outputs, tiny):
    oracle = TransformersOracle(tiny(tag), torch.float32)
    depths = set()
    for name in [name for key, name in outputs if key == tag]:
        settings = SETTINGS[name][1]
        call = outputs[tag, name]["calls"][0]
        for prompt, (generated,), scores in zip(
            some_prompts(oracle.model.config.vocab_size), call["tokens"], call["prompt_logprobs"], strict=True
        ):
            assert follow(oracle, prompt, generated, **settings) is None, "a near tie: choose another seed"
            rows = oracle.select(prompt, 0, **settings)
            for position in range(1, len(prompt)):
                logits, depth, gap, _ = rows[position - 1]
                depths.add(depth)
                expected = torch.tensor(logits).log_softmax(-1)[prompt[position]].item()
                assert gap < 1e-4 or dict(scores[position])[prompt[position]] == pytest.approx(expected, abs=1e-4)
    assert len(depths) > 3, "the checkpoint is too easy"


@pytest.mark.parametrize("tag", SUPPORTED)
def test_the_switch_off_leaves_the_model_alone(tag, outputs):
    probe = outputs[tag, "standard"]["probe"]
    assert probe["class_is_registered"]
    assert not probe["head_in_dict"]
    assert probe["buffers"] == [] == probe["aux_layers"]
    assert outputs[tag, "standard"]["lines"] == []


@pytest.mark.parametrize("tag", SUPPORTED)
def test_armed(tag, outputs):
    result = outputs[tag, "trough"]
    (line,) = [line for line in result["lines"] if "armed" in line]
    for part in (
        "INFO",
        "select_method=trough",
        "p=1.00",
        "candidates=6",
        "window=5",
        "layers=[5, 4, 3, 2, 1, 0] of 0..5",
        "vLLM 0.",
        "V1 model runner",
        "KV-cache tokens",
    ):
        assert part in line
    probe = result["probe"]
    assert probe["class"].endswith(tag.split("-")[0]), "vLLM and its logs identify models by their class's name"
    assert probe["head_in_dict"]
    assert probe["aux_layers"] == [1, 2, 3, 4, 5]
    assert probe["state_dict"] == [], "the counters are no weights"
    assert result["user_dict_unchanged"]


def test_memory_in_kv_tokens(outputs):
    """5 captured states x 256 tokens x 128 floats; KV: 6 layers x 2 heads x 32 x (K and V) floats."""
    (line,) = [line for line in outputs["LlamaForCausalLM", "trough"]["lines"] if "armed" in line]
    size, per_token = 5 * 256 * 128 * 4, 6 * 2 * 32 * 2 * 4
    assert (
        f"add {size / 2**20:.1f} MiB at max_num_batched_tokens=256, the memory of {size // per_token} KV-cache tokens"
        in line
    )


@pytest.fixture(scope="module")
def refusals(run_engines, tiny):
    call = [{"prompts": [[5, 6, 7]], "sampling": greedy(2)}]
    jobs = [
        {
            "engine": tiny_engine(tiny("LlamaForCausalLM"), switch, hf_overrides={"architectures": [name]}),
            "calls": call,
            "may_fail": True,
        }
        for name in ODD
        for switch in (on(), {})
    ]
    results = run_engines(jobs, "--odd-models")
    # MiMo's own class on the checkpoint of the model that it extends: its forward captures nothing.
    others = {"GPT2LMHeadModel": "GPT2LMHeadModel", "MiMoForCausalLM": "Qwen2ForCausalLM"}
    results += run_engines(
        [
            {
                "engine": tiny_engine(tiny(tag), switch, hf_overrides={"architectures": [name]}),
                "calls": call,
                "may_fail": True,
            }
            for name, tag in others.items()
            for switch in (on(), {})
        ]
    )
    return {name: (results[2 * i], results[2 * i + 1]) for i, name in enumerate([*ODD, *others])}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("RescaledForCausalLM", "not a plain output head"),
        ("CappedOutsideForCausalLM", "not a plain output head"),
        ("RescaledForwardForCausalLM", "its forward changes the final state"),
        ("TwoNormsForCausalLM", "its final state is not its norm of the last one"),
        ("ForgetfulForCausalLM", "does not capture intermediate states"),
        ("GPT2LMHeadModel", "does not capture intermediate states"),
        ("MiMoForCausalLM", "does not capture intermediate states"),
    ],
)
def test_unproven_architectures_are_refused_by_name(name, why, refusals):
    with_switch, without = refusals[name]
    assert "ConfigError" in with_switch["error"]
    assert why in with_switch["error"]
    assert name in with_switch["error"]
    assert "enable_multi_layer_entropy_selection=false" in with_switch["error"]
    assert without["error"] is None
    assert without["lines"] == []


def test_missing_states_are_an_error_that_says_so(refusals):
    with_switch, without = refusals["LyingForCausalLM"]
    assert "expected 5 captured states from the model and got 1" in with_switch["error"]
    assert without["error"] is None


def test_fast_prefill_is_refused_by_name(run_engines, tiny):
    """Gemma 4 without its last layers' states for most prompt tokens: the captured states are dropped there."""
    engine = tiny_engine(tiny("Gemma4ForCausalLM-ple"), on(), kv_sharing_fast_prefill=True)
    (result,) = run_engines([{"engine": engine, "calls": [], "may_fail": True}])
    assert "kv-sharing-fast-prefill" in result["error"]


@pytest.mark.slow
def test_a_class_that_is_compiled_as_a_whole(run_engines, tiny):
    """Its forward was bound when it was built; a forward put on a subclass later would never be called."""
    calls = [{"prompts": some_prompts(VOCAB), "sampling": greedy(12)}]
    jobs = [
        {"engine": tiny_engine(tiny("Ernie4_5ForCausalLM"), on(), enforce_eager=eager), "calls": calls}
        for eager in (True, False)
    ]
    eager, compiled = (result["calls"][0]["tokens"] for result in run_engines(jobs))
    assert compiled == eager
