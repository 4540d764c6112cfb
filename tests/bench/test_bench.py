"""Engines of `bench`, and its table; real engines are in tests/cli/test_commands.py."""

import json
import os
import statistics
import sys
import textwrap
from types import SimpleNamespace

import pytest

from confident_decoding.bench.engine import Engine, EngineError, step_ms
from confident_decoding.bench.results import machine, medians


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """``engine(code)``: an `Engine` whose process runs ``code`` in place of vLLM."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    started = []

    def start(code):
        (tmp_path / "stand_in.py").write_text(textwrap.dedent(code))
        started.append(Engine("mine", {"a": 1}, tmp_path / "log.txt", module="stand_in", env={"NEW": "1", "OLD": "1"}))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_it_is_asked_and_answers(engine, monkeypatch, tmp_path):
    monkeypatch.setenv("OLD", "user's")
    mine = engine(
        """
        import json, os, sys
        from confident_decoding.bench.engine import say
        say({"spec": json.loads(sys.argv[1])})
        for line in sys.stdin:
            print("noise")
            say({"twice": 2 * json.loads(line)["number"], "env": [os.environ["NEW"], os.environ["OLD"]]})
        """
    )
    mine.wait()
    assert mine.ask(number=4) == {"twice": 8, "env": ["1", "user's"]}
    assert mine.ask(number=5)["twice"] == 10
    mine.close()
    assert (tmp_path / "log.txt").read_text() == "noise\nnoise\n"
    mine.close()  # again does no harm


def test_its_own_error_is_the_message(engine):
    mine = engine("from confident_decoding.bench.engine import say\nsay({'error': 'too big'})")
    with pytest.raises(EngineError) as failed:
        mine.wait()
    assert (failed.value.name, str(failed.value)) == ("mine", "too big")


def test_an_engine_that_dies_leaves_the_end_of_its_log(engine):
    mine = engine("print('the reason')\nraise SystemExit(3)")
    with pytest.raises(EngineError, match="ended with status 3") as failed:
        mine.wait()
    assert failed.value.__notes__ == ["the reason\n"]
    with pytest.raises(EngineError):
        mine.ask(number=1)


class Clock:
    """A model whose prefill takes 5 s and whose step takes 0.25 s, and whose answers have up to 100 tokens."""

    def __init__(self, monkeypatch):
        self.now, self.asked = 0.0, []
        monkeypatch.setattr("confident_decoding.bench.engine.time.perf_counter", lambda: self.now)

    def generate(self, prompts, params, use_tqdm, lora_request):
        assert lora_request is None
        assert params.ignore_eos
        assert params.temperature == 0
        self.asked.append((len(prompts), params.max_tokens))
        self.now += 5 + 0.25 * params.max_tokens
        tokens = range(min(params.max_tokens, 100))
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)]) for _ in prompts]


def test_a_step_has_no_prefill_in_it(monkeypatch):
    clock = Clock(monkeypatch)
    assert step_ms(clock, ["a", "b"], 32) == 250
    assert clock.asked == [(2, 32), (2, 8)]


def test_answers_that_end_with_the_context_are_no_measure(monkeypatch):
    with pytest.raises(RuntimeError, match="answers of 128 tokens do not fit into the context"):
        step_ms(Clock(monkeypatch), ["a"], 128)


def test_ratios_are_of_one_round():
    rounds = [
        {"stock": {1: 10.0, 8: 20.0}, "mine": {1: 11.0, 8: 30.0}},
        {"stock": {1: 20.0, 8: 20.0}, "mine": {1: 24.0, 8: 20.0}},
        {"stock": {1: 10.0, 8: 10.0}, "mine": {1: 13.0, 8: 12.0}},
    ]
    table = medians(rounds)
    assert table["mine"][1] == {
        "ms": 13.0,
        "ratio": pytest.approx(statistics.median([1.1, 1.2, 1.3])),
        "least": pytest.approx(1.1),
        "most": pytest.approx(1.3),
    }
    assert table["stock"][8] == {"ms": 20.0, "ratio": 1, "least": 1, "most": 1}
    assert table["mine"][8]["most"] == 1.5


def test_the_machine_is_described():
    found = json.loads(json.dumps(machine()))
    assert found["cores"] == os.cpu_count()
    assert found["confident-decoding"]
    assert found["python"].startswith("3.")
