"""Statistics, mixing, sampling, speculation, pooling: tiny models in real engines."""

import re

import pytest
import torch
from conftest import greedy, on, smol_engine, tiny_engine
from oracle import TransformersOracle

pytestmark = pytest.mark.engine

LINE = re.compile(
    r"INFO \[trough-decoding\] step=(?P<step>\d+) tokens=(?P<tokens>\d+) layers=(?P<layers>\d+) "
    r"select_method=(?P<method>\S+) p=(?P<p>\d\.\d\d) avg_selected_layer=(?P<avg>\d+\.\d\d) "
    r"min_selected_layer=(?P<min>\d+) avg_backtrack_depth=(?P<depth>\d+\.\d\d) max_backtrack_depth=(?P<max>\d+) "
    r"tokens_kept_at_final=(?P<kept>\d+)/(?P<of>\d+) sample=\[(?P<sample>.*)\]"
)
PROMPTS = [torch.randint(3, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 30)]
SAMPLED = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True, "detokenize": False}
CALL = [{"prompts": PROMPTS, "sampling": greedy(20)}]


def statistics(result):
    return [LINE.fullmatch(line) for line in result["lines"] if "[trough-decoding]" in line]


@pytest.fixture(scope="module")
def results(run_engines, tiny):
    path = tiny("LlamaForCausalLM")
    scored = [{"prompts": PROMPTS, "sampling": greedy(20, prompt_logprobs=0)}]
    seeded = [{"prompts": PROMPTS, "sampling": {**SAMPLED, "seed": 5}}]
    unseeded = [{"prompts": PROMPTS, "sampling": SAMPLED}]
    top5 = [{"prompts": PROMPTS, "sampling": greedy(8, logprobs=5)}]
    jobs = {
        "every step": (on(trough_log_interval=1), scored, {}),
        "every third": (on(trough_log_interval=3), scored, {}),
        "last-m4": (on(select_method="last-m4", trough_log_interval=1), CALL, {}),
        "p half": (on(p=0.5, trough_log_interval=1), CALL, {}),
        "p half again": (on(p=0.5), CALL, {}),
        "p half, other seed": (on(p=0.5), CALL, {"seed": 1}),
        "p zero": (on(p=0.0, trough_log_interval=1), CALL, {}),
        "p one": (on(), CALL, {}),
        "off": ({}, CALL, {}),
        "raw logits": (
            on(),
            [{"prompts": PROMPTS, "sampling": greedy(8, logprobs=5)}],
            {"logprobs_mode": "raw_logits"},
        ),
        "processed": (on(), top5, {"logprobs_mode": "processed_logprobs"}),
        "one candidate": (on(trough_max_backtrack_layers=0, trough_log_interval=1), CALL, {}),
        "ngram": (
            on(trough_log_interval=1),
            CALL,
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 3,
                    "prompt_lookup_max": 3,
                    "prompt_lookup_min": 1,
                },
            },
        ),
        "sampled, off": ({}, unseeded + seeded, {}),
        "sampled, p zero": (on(p=0.0), unseeded + seeded, {}),
        "sampled, mixing": (on(p=1e-12), unseeded + seeded, {}),
        "head in float32": (on(p=0.0), CALL, {"dtype": "bfloat16", "hf_overrides": {"head_dtype": "float32"}}),
        "head in float32, off": ({}, CALL, {"dtype": "bfloat16", "hf_overrides": {"head_dtype": "float32"}}),
    }

    def run(names):
        return run_engines(
            [{"engine": tiny_engine(path, jobs[n][0], **jobs[n][2]), "calls": jobs[n][1]} for n in names]
        )

    # ngram speculation imports numba, after which this vLLM cannot start another engine in the process.
    others = [name for name in jobs if name != "ngram"]
    return {**dict(zip(others, run(others), strict=True)), "ngram": run(["ngram"])[0]}


@pytest.fixture(scope="module")
def expected_depths(results, tiny):
    """Per step, the depths of the three sequences, from transformers."""
    oracle = TransformersOracle(tiny("LlamaForCausalLM"), torch.float32)
    columns = []
    for prompt, (generated,) in zip(PROMPTS, results["every step"]["calls"][0]["tokens"], strict=True):
        rows = oracle.select([*prompt, *generated[:-1]], len(prompt) - 1, window=5)
        columns.append(
            [(depth, gap, float(-(x := torch.tensor(logits).softmax(-1)) @ x.log())) for logits, depth, gap, _ in rows]
        )
    return list(zip(*columns, strict=True))


def test_a_line_every_step_tells_the_oracles_depths(results, expected_depths):
    lines = statistics(results["every step"])
    assert len(lines) == 20
    for number, (line, rows) in enumerate(zip(lines, expected_depths, strict=True), 1):
        if any(gap < 1e-4 for _, gap, _ in rows):
            continue
        depths = [depth for depth, _, _ in rows]
        assert (int(line["step"]), int(line["tokens"]), int(line["layers"])) == (number, 3, 6)
        assert (line["method"], line["p"]) == ("trough", "1.00")
        assert int(line["kept"]) == depths.count(0)
        assert int(line["of"]) == 3
        assert int(line["max"]) == max(depths)
        assert int(line["min"]) == 5 - max(depths)
        assert line["depth"] == f"{sum(depths) / 3:.2f}"
        assert line["avg"] == f"{5 - sum(depths) / 3:.2f}"
        sample = re.findall(r"\((\d+), (\d+\.\d\d)\)", line["sample"])
        assert [int(layer) for layer, _ in sample] == [5 - d for d in depths]


def test_the_sample_holds_the_final_layers_entropies(results, tiny):
    oracle = TransformersOracle(tiny("LlamaForCausalLM"), torch.float32)
    lines = statistics(results["every step"])
    for index, (prompt, (generated,)) in enumerate(
        zip(PROMPTS, results["every step"]["calls"][0]["tokens"], strict=True)
    ):
        final = torch.tensor(oracle.rows([*prompt, *generated[:-1]], len(prompt) - 1, [0])[0]).log_softmax(-1)
        for line, row in zip(lines, final, strict=True):
            entropy = float(-(row.exp() * row).sum())
            found = re.findall(r"\((\d+), (\d+\.\d\d)\)", line["sample"])[index]
            assert float(found[1]) == pytest.approx(entropy, abs=0.0051)


def test_counts_add_up_between_lines(results, expected_depths):
    lines = statistics(results["every third"])
    assert [int(line["step"]) for line in lines] == [3, 6, 9, 12, 15, 18]
    for block, line in enumerate(lines):
        depths = [depth for rows in expected_depths[3 * block : 3 * block + 3] for depth, _, _ in rows]
        assert int(line["tokens"]) == 9
        assert int(line["kept"]) == depths.count(0)
        assert int(line["max"]) == max(depths)


def test_interval_zero_never_logs(results):
    assert statistics(results["p one"]) == []


def test_last_mk_line(results):
    lines = statistics(results["last-m4"])
    assert len(lines) == 20
    for line in lines:
        assert (line["layers"], line["method"], line["avg"], line["depth"], line["kept"]) == (
            "5",
            "last-m4",
            "0.00",
            "4.00",
            "0",
        )


def test_the_line_is_after_mixing(results):
    assert all(line["kept"] == line["of"] for line in statistics(results["p zero"]))
    kept = sum(int(line["kept"]) for line in statistics(results["p half"]))
    assert 60 / 2 - 4 * 15**0.5 < kept < 60


def test_mixing_is_reproducible_and_follows_the_engines_seed(results):
    half, again, other = (results[k]["calls"][0]["tokens"] for k in ("p half", "p half again", "p half, other seed"))
    assert half == again
    assert half != other
    assert half != results["p one"]["calls"][0]["tokens"]
    assert half != results["off"]["calls"][0]["tokens"]


def test_p_zero_and_one_candidate_are_standard(results):
    assert results["p zero"]["calls"] != results["p one"]["calls"]
    for name in ("p zero", "one candidate"):
        assert results[name]["calls"][0]["tokens"] == results["off"]["calls"][0]["tokens"]
    assert results["head in float32"]["calls"][0]["tokens"] == results["head in float32, off"]["calls"][0]["tokens"]


def test_one_candidate_warns_once_and_still_counts(results):
    warnings = [line for line in results["one candidate"]["lines"] if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "nothing will be selected" in warnings[0]
    assert all(line["layers"] == "1" and line["kept"] == "3" for line in statistics(results["one candidate"]))


def test_stock_samplings_random_stream_is_not_shifted(results):
    """Even while a coin is tossed for every row (p = 1e-12 tosses and never selects)."""
    off = [call["tokens"] for call in results["sampled, off"]["calls"]]
    assert off[0] != off[1]
    for name in ("sampled, p zero", "sampled, mixing"):
        assert [call["tokens"] for call in results[name]["calls"]] == off


@pytest.mark.parametrize("mode", ["raw logits", "processed"])
def test_logprobs_describe_the_selected_layer_in_other_modes_too(mode, results, tiny):
    oracle = TransformersOracle(tiny("LlamaForCausalLM"), torch.float32)
    call, depths = results[mode]["calls"][0], set()
    for prompt, (generated,), (scores,) in zip(PROMPTS, call["tokens"], call["logprobs"], strict=True):
        rows = oracle.select([*prompt, *generated[:-1]], len(prompt) - 1, window=5)
        for (logits, depth, gap, _), found in zip(rows, scores, strict=True):
            expected = torch.tensor(logits)
            if mode == "processed":  # greedy: the processed distribution is the selected layer's
                expected = expected.log_softmax(-1)
            depths.add(depth)
            for token, score in found:
                assert gap < 1e-4 or score == pytest.approx(expected[token].item(), abs=2e-4)
    assert len(depths) > 2


def test_ngram_speculation_changes_no_token_and_selects_every_row(results):
    assert results["ngram"]["calls"][0]["tokens"] == results["p one"]["calls"][0]["tokens"]
    lines = statistics(results["ngram"])
    assert len(lines) <= 20
    assert max(int(line["tokens"]) for line in lines) > 3, "no draft row was ever verified"


def test_a_pooling_engine_is_left_alone(run_engines, smollm2):
    jobs = [
        {
            "engine": {
                **smol_engine(smollm2, config),
                "skip_tokenizer_init": False,
                "runner": "pooling",
                "convert": "embed",
            },
            "calls": [],
            "embed": PROMPTS,
        }
        for config in ({}, on(trough_log_interval=1))
    ]
    off, with_switch = run_engines(jobs)
    assert off["embeddings"] == with_switch["embeddings"]
    assert with_switch["lines"] == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_sharing_fast_prefill": True}, "--kv-sharing-fast-prefill"),
    ],
    ids=str,
)
def test_unsupported_combinations_are_refused_by_name(options, named, run_engines, tiny):
    (result,) = run_engines(
        [{"engine": tiny_engine(tiny("LlamaForCausalLM"), on(), **options), "calls": [], "may_fail": True}]
    )
    assert result["error"].startswith("ConfigError: confident-decoding cannot start")
    assert named in result["error"]


def test_the_kill_switch_is_standard_decoding_and_says_so(run_engines, tiny, results):
    job = {"engine": tiny_engine(tiny("LlamaForCausalLM"), on()), "calls": CALL, "probe": True}
    (killed,) = run_engines([job], env={"CONFIDENT_DECODING_DISABLE": "1"})
    assert (
        killed["calls"][0]["tokens"] == results["off"]["calls"][0]["tokens"] != results["p one"]["calls"][0]["tokens"]
    )
    assert killed["probe"]["class_is_registered"]
    assert "head_in_dict" in killed["probe"]
    assert not killed["probe"]["head_in_dict"]
    (line,) = {line for line in killed["lines"] if "CONFIDENT_DECODING_DISABLE" in line}
    assert line.startswith("WARNING")
