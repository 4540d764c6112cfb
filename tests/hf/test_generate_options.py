"""transformers' own options of ``generate``, with the selected layer's logits."""

import logging

import oracle
import pytest
import torch
import transformers

import confident_decoding.hf
from hf.common import PROMPTS, TIE, UNLIMITED, confident, greedy, new, padded

ALL = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True, "output_depths": True}


@pytest.fixture(scope="module")
def reference(checkpoint):
    return oracle.TransformersOracle(checkpoint, torch.float32)


def test_the_result_carries_logits_scores_and_depths_per_token(model, reference):
    out = confident(model, **ALL)
    assert isinstance(out, transformers.generation.GenerateDecoderOnlyOutput)
    tokens = new(out.sequences)
    assert len(out.confident_depths) == len(out.logits) == len(out.scores) == tokens.shape[1] == 10
    judged = 0
    for b, prompt in enumerate(PROMPTS):
        rows = reference.select([*prompt, *tokens[b, :-1].tolist()], len(prompt) - 1, window=5)
        for (expected, depth, gap, _), logits, depths in zip(rows, out.logits, out.confident_depths, strict=True):
            assert depths.shape == (3,)
            assert depths.dtype == torch.int64
            if gap > TIE:
                assert depths[b] == depth
                assert torch.allclose(logits[b].double(), torch.from_numpy(expected), atol=1e-3)
                judged += 1
    assert judged > 15, "of 30"


def test_sampling_draws_from_the_selected_distribution(model):
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, **ALL}
    torch.manual_seed(3)
    out = confident(model, **sampled)
    torch.manual_seed(3)
    for logits, scores, token in zip(out.logits, out.scores, new(out.sequences).T, strict=True):
        best = (logits / 0.7).topk(20).values[:, -1:]
        kept = scores > -torch.inf
        assert (kept.sum(-1) <= 20).all()
        assert torch.allclose(scores[kept], (logits / 0.7)[kept])
        assert ((logits / 0.7)[kept] >= best.expand_as(logits)[kept]).all()
        assert torch.equal(torch.multinomial(scores.softmax(-1), 1)[:, 0], token)
    torch.manual_seed(3)
    assert torch.equal(confident(model, **sampled).sequences, out.sequences)
    torch.manual_seed(4)
    assert not torch.equal(confident(model, **sampled).sequences, out.sequences)


def test_mixing_draws_by_its_own_seed_and_leaves_the_global_generator_alone(model):
    config = {**UNLIMITED, "select_method": "last-m3", "p": 0.5}
    state = torch.get_rng_state()
    runs = [confident(model, config=config, confident_seed=seed, **ALL) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = (torch.stack(run.confident_depths) for run in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set(first.flatten().tolist()) == {0, 3}
    assert 8 <= int((first == 3).sum()) <= 22  # of 30


def test_several_sequences_of_a_prompt(model):
    torch.manual_seed(0)
    out = confident(model, do_sample=True, num_return_sequences=2, **ALL)
    assert out.sequences.shape[0] == out.confident_depths[0].shape[0] == 6


def compile_everywhere():
    """What ``generate`` does by itself for a static cache on a GPU."""
    config = transformers.CompileConfig()
    config._compile_all_devices = True
    return config


@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"cache_implementation": "static", "compile_config": compile_everywhere()},
        {"prefill_chunk_size": 4},
        {"output_hidden_states": True, "output_attentions": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_change_the_forward_do_not_change_the_tokens(model, options, monkeypatch):
    expected = confident(model, **ALL)
    model.set_attn_implementation("eager")
    monkeypatch.setattr(model, "get_compiled_call", lambda config: pytest.fail("the step is compiled"))
    out = confident(model, **ALL, **options)
    assert torch.equal(out.sequences, expected.sequences)
    assert len(out.confident_depths) == 10
    assert torch.equal(torch.stack(out.confident_depths), torch.stack(expected.confident_depths))


def test_the_dense_scan_that_a_gpu_uses(model, monkeypatch):
    expected = confident(model, **ALL)
    monkeypatch.setattr("confident_decoding.planner.rows_per_read", lambda *args, **kwargs: None)
    out = confident(model, **ALL)
    assert torch.equal(out.sequences, expected.sequences)
    assert torch.equal(torch.stack(out.confident_depths), torch.stack(expected.confident_depths))


def test_continuing_from_a_cache(model):
    whole = new(confident(model))
    out = confident(model, max_new_tokens=4, **ALL)
    mask = torch.nn.functional.pad(padded(PROMPTS)["attention_mask"], (0, 4), value=1)
    more = confident(
        model, input_ids=out.sequences, attention_mask=mask, past_key_values=out.past_key_values, max_new_tokens=6
    )
    assert torch.equal(new(more), whole)


def test_a_prompt_given_as_embeddings(model):
    inputs = padded(PROMPTS)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    out = model.generate(
        inputs_embeds=embeds,
        attention_mask=inputs["attention_mask"],
        custom_generate=confident_decoding.hf.generate,
        confident_config=UNLIMITED,
        **ALL,
        **greedy(10),
    )
    assert torch.equal(out.sequences, new(confident(model)))
    assert len(out.confident_depths) == 10


def test_logits_processors_see_and_change_the_selected_logits(model):
    plain = confident(model, **ALL)
    banned = int(new(plain.sequences)[0, 0])
    seen = []

    class Ban(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(scores.clone())
            scores[:, banned] = -torch.inf
            return scores

    out = confident(model, logits_processor=transformers.LogitsProcessorList([Ban()]))
    assert torch.equal(seen[0], plain.logits[0])
    assert len(seen) == 10
    assert banned not in new(out).flatten().tolist()
    assert banned not in new(confident(model, suppress_tokens=[banned])).flatten().tolist()


def test_what_a_processor_or_a_criterion_does_with_the_model_is_no_step(model):
    """A guidance or a judge of one's own: it gets the model's own logits, and depths stay those of the tokens."""
    plain = confident(model, **ALL)
    got = []

    class Judge(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            got.append(model(input_ids).logits)
            return scores

    class Never(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            got.append(model(input_ids).logits)
            return torch.zeros(len(input_ids), dtype=torch.bool)

    out = confident(
        model,
        logits_processor=transformers.LogitsProcessorList([Judge()]),
        stopping_criteria=transformers.StoppingCriteriaList([Never()]),
        **ALL,
    )
    assert torch.equal(out.sequences, plain.sequences)
    assert len(out.confident_depths) == len(plain.confident_depths) == 10
    assert all(map(torch.equal, out.confident_depths, plain.confident_depths))
    torch.testing.assert_close(got[-1], model(out.sequences).logits)
    assert len(got) == 20


def test_end_token_padding_and_stopping_criteria(model):
    tokens = new(confident(model))
    row = tokens[0].tolist()
    end = next(t for i, t in enumerate(row) if 0 < i < 9 and t not in row[:i] and t not in tokens[1].tolist())
    at = row.index(end)
    stopped = new(confident(model, eos_token_id=end, pad_token_id=0))
    assert stopped[0, : at + 1].tolist() == row[: at + 1]
    assert not stopped[0, at + 1 :].any()
    assert torch.equal(stopped[1], tokens[1])

    class AtLength(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] >= 20)

    assert confident(model, stopping_criteria=transformers.StoppingCriteriaList([AtLength()])).shape[1] == 20


class Collect(transformers.generation.BaseStreamer):
    def __init__(self):
        self.put_, self.ended = [], False

    def put(self, value):
        self.put_.append(value.tolist())

    def end(self):
        self.ended = True


@pytest.mark.parametrize("config", [UNLIMITED, {"p": 0.0}], ids=["selecting", "p=0"])
def test_a_streamer_gets_every_token(model, config):
    streamer = Collect()
    out = confident(model, PROMPTS[:1], config, streamer=streamer)
    prompt, *tokens = streamer.put_
    assert prompt == [PROMPTS[0]]
    assert [token for (token,) in tokens] == new(out, PROMPTS[:1])[0].tolist()
    assert streamer.ended


def test_the_log_line_of_the_vllm_plugin(model, caplog):
    with caplog.at_level(logging.INFO, logger="confident_decoding.hf"):
        confident(model, config={**UNLIMITED, "trough_log_interval": 4})
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("[trough-decoding] step=4 tokens=12 layers=6 select_method=trough p=1.00 ")
    assert second.startswith("[trough-decoding] step=8 tokens=12 ")


def test_settings_that_select_nothing_are_standard_decoding_and_say_so(model, caplog):
    out = confident(model, config={"trough_max_backtrack_layers": 0}, **ALL)
    assert torch.equal(out.sequences, model.generate(**padded(PROMPTS), **greedy(10)))
    assert not any(depths.any() for depths in out.confident_depths)
    assert "select nothing" in caplog.text
