"""Engines of `bench`, and its table; real engines are in tests/cli/test_commands.py."""

import contextlib
import json
import os
import statistics
import sys
import textwrap
from types import SimpleNamespace

import pytest

from confident_decoding.bench.results import machine, medians
from confident_decoding.bench.timed import EngineError, TimedEngine, step_ms


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """``engine(code)``: a `TimedEngine` whose process runs ``code`` in place of vLLM."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with contextlib.ExitStack() as stack:

        def start(code):
            (tmp_path / "stand_in.py").write_text(
                "from confident_decoding.engines.process import Parent\nparent = Parent()\n" + textwrap.dedent(code)
            )
            return stack.enter_context(TimedEngine("mine", {"a": 1}, tmp_path / "log.txt", module="stand_in"))

        yield start


def test_it_is_asked_and_answers(engine, tmp_path):
    mine = engine(
        """
        messages = parent.messages()
        parent.say({"spec": next(messages)})
        for question in messages:
            print("noise")
            parent.say({"twice": 2 * question["number"]})
        """
    )
    assert mine.wait() == {"spec": {"a": 1}}
    assert mine.ask(number=4) == {"twice": 8}
    assert mine.ask(number=5)["twice"] == 10
    mine.close()
    assert (tmp_path / "log.txt").read_text() == "noise\nnoise\n"
    mine.close()  # again does no harm


def test_its_own_error_is_the_message(engine):
    mine = engine("parent.say({'error': 'too big'})")
    with pytest.raises(EngineError) as failed:
        mine.wait()
    assert (failed.value.name, str(failed.value)) == ("mine", "too big")


def test_an_engine_that_dies_leaves_the_end_of_its_log(engine):
    mine = engine("print('the reason')\nraise SystemExit(3)")
    with pytest.raises(EngineError, match=r"ended with status 3\n") as failed:
        mine.wait()
    assert failed.value.__notes__ == ["the reason\n"]
    with pytest.raises(EngineError):
        mine.ask(number=1)


def test_an_engine_that_the_system_kills_is_told_so(engine):
    mine = engine("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(EngineError, match=r"ended with status -9 \(killed: is there enough memory"):
        mine.wait()


class Clock:
    """A model whose prefill takes 5 s and whose step takes 0.25 s, and whose answers have up to 100 tokens."""

    def __init__(self, monkeypatch):
        self.now, self.asked = 0.0, []
        monkeypatch.setattr("confident_decoding.bench.timed.time.perf_counter", lambda: self.now)

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
