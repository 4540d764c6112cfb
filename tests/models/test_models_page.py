"""docs/models.md is what the committed evidence says; every promised architecture has some, none failing."""

from models.checkpoints import LISTED
from models.criteria import problems
from tools import models_doc


def good_line():
    (line,) = [row for row in models_doc.evidence() if row["tag"] == "GptOssForCausalLM" and row["device"] == "CPU"]
    return line


def test_the_page_is_up_to_date():
    assert models_doc.PAGE.read_text() == models_doc.page()


def test_every_promised_architecture_is_proven_on_the_cpu_and_nearly_all_on_a_gpu():
    rows = models_doc.evidence()
    assert [problems(row) for row in rows] == [[]] * len(rows)
    on_gpu = {row["tag"] for row in rows if row["device"] != "CPU"}
    assert {row["tag"] for row in rows if row["device"] == "CPU"} >= set(LISTED)
    # GLM-5 with dense attention is a CPU form; its sparse one is proven on the GPU.
    assert set(LISTED) - on_gpu == {"GlmMoeDsaForCausalLM"}


def test_evidence_can_fail():
    """Each criterion refuses a line that breaks it alone."""
    breaks = {
        "states, logits or entropies are off": {"entropy_error": 2e-3},
        "norm(stream after the last layer)": {"last_stream_error": 1e-3},
        "depths: 80 of 82 equal": {"depths": {"gap": 1e-3, "compared": 82, "equal": 80}},
        "only 5 rows are decided": {"depths": {"gap": 1e-3, "compared": 5, "equal": 5}},
        "too easy": {"depths_seen": [0, 1]},
        "p=0 differs": {"p0_bit_equal": False},
        "must be stock": {"untouched": {"switched_off": False}},
        "left the oracle's without a tie": {"batched": {"left_at": [{"gap": 0.1, "margin": 0.1}]}},
        "returned logprobs are off": {"returned_logprob_error": 0.01},
        "over 1.5 x": {"dtype": "bfloat16", "relative_error_by_depth": [0.01, 0.02]},
    }
    assert problems(good_line()) == []
    for sentence, change in breaks.items():
        (found,) = problems({**good_line(), **change})
        assert sentence in found
