"""A real ``vllm serve`` under mixed load: no error, no leak, and every answer the one that is given alone."""

import math
import re
import uuid

import httpx
import pytest
from conftest import ROOT, on
from oracle import TransformersOracle
from plugin.checks import TIE
from plugin.test_server import SERVER_ENV, processes_with

from demo.server import running
from load.checkpoint import with_tokenizer
from load.client import Choice, at_once
from load.mix import mix
from load.watch import Memory

pytestmark = pytest.mark.server

IN_FLIGHT = 64
FLAT = 4
"""MiB that a process may grow by from the third quarter of 2,000 requests to the last: 8 KiB a request are found."""
CONFIG = on(trough_log_interval=50)
OPTIONS = (
    *("--enforce-eager", "--max-model-len", "128", "--dtype", "float32", "--served-model-name", "m"),
    # Stock vLLM 0.32's CPU engine ends at a seeded request whose prompt is cut: "CPU Generator does not use offset".
    *("--max-num-seqs", "48", "--max-num-batched-tokens", "1024", "--no-enable-chunked-prefill"),
    # Too few for 48 long sequences: some are preempted and computed again.
    *("--block-size", "32", "--num-gpu-blocks-override", "48"),
    *("--worker-extension-cls", "load.probe.Probe"),
)


@pytest.fixture(scope="module")
def checkpoint(tiny, smollm2, tmp_path_factory):
    return with_tokenizer(tiny("LlamaForCausalLM"), smollm2, tmp_path_factory.mktemp("load") / "model")


def load(checkpoint, count, seed, log):
    """Everything that a run of ``count`` requests shows."""
    asks = mix(count, seed)
    mark = f"CONFIDENT_DECODING_TEST={uuid.uuid4()}"
    env = {
        **SERVER_ENV,
        **dict([mark.split("=")]),
        "VLLM_SERVER_DEV_MODE": "1",  # for the probe
        # oneDNN keeps the code of up to 1,024 shapes of matrix products, 100 MiB of them (stock vLLM as well).
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
        "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}",
    }
    with running(checkpoint, log, CONFIG, *OPTIONS, env=env) as url:
        at_once(url, mix(IN_FLIGHT, seed + 1), IN_FLIGHT)  # pools and caches of a process grow with its first work
        before = counted(httpx.get(f"{url}/metrics", timeout=60).text, "generation_tokens_total")
        memory = Memory(processes_with(mark), count)
        together = at_once(url, asks, IN_FLIGHT, memory.told)
        held = httpx.post(f"{url}/collective_rpc", json={"method": "held_requests"}, timeout=60).json()["results"]
        metrics = httpx.get(f"{url}/metrics", timeout=60).text
        stayed = [ask.__class__(ask.number, ask.body) for ask in asks]
        alone = at_once(url, stayed, 1)
        written = log.read_text()  # before the server is stopped: all of its processes at once, which it calls an error
    return {
        "asks": asks,
        "together": together,
        "alone": alone,
        "memory": memory,
        "held": held,
        "preemptions": counted(metrics, "num_preemptions_total"),
        "running": counted(metrics, "num_requests_running"),
        "generated": counted(metrics, "generation_tokens_total") - before,
        "log": written,
    }


def counted(metrics, name):
    return sum(float(x) for x in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)", metrics, re.M))


def check_no_errors(run):
    for answer in (*run["together"], *run["alone"]):
        assert answer.left or answer.status == 200, answer
        assert not answer.error, answer
    bad = [line for line in run["log"].splitlines() if re.search(r"\bERROR\b|Traceback|\bCRITICAL\b", line)]
    assert bad == []


def check_nothing_is_held(run):
    assert run["held"] == [{"requests": 0}]
    assert run["running"] == 0


def different(run):
    """``(ask, index of the sample, place)`` where an answer leaves the one that was given alone."""
    found = []
    for ask, together, alone in zip(run["asks"], run["together"], run["alone"], strict=True):
        for index, whole in alone.choices.items():
            got = together.choices.get(index, Choice())
            end = len(got.tokens) if together.left else len(whole.tokens)
            place = next((i for i in range(end) if got.tokens[i : i + 1] != whole.tokens[i : i + 1]), None)
            if place is not None:
                found.append((ask, index, place))
            elif not together.left:
                assert (got.tokens, got.text, got.finish_reason) == (whole.tokens, whole.text, whole.finish_reason)
                assert got.logprobs == pytest.approx(whole.logprobs, abs=1e-3), ask
            else:
                assert whole.text.startswith(got.text)
    return found


def ties(run, checkpoint):
    """The differences with the entropy gap (nats) and the top-2 margin at their places, from transformers."""
    oracle = None
    rows = []
    for ask, index, place in different(run):
        import torch

        oracle = oracle or TransformersOracle(checkpoint, torch.float32)
        prefix = [*ask.body["prompt"], *run["alone"][ask.number].choices[index].tokens[:place]]
        ((_, depth, gap, margin),) = oracle.select(prefix, len(prefix) - 1, window=oracle.num_layers - 1)
        ((_, _, _, final),) = oracle.select(prefix, len(prefix) - 1, window=0)
        if ask.body["temperature"]:
            margin = final = math.inf
        rows.append({"ask": ask, "place": place, "gap": gap, "margin": min(margin, final), "depth": depth})
    return rows


def check(run, checkpoint):
    check_no_errors(run)
    check_nothing_is_held(run)
    found = ties(run, checkpoint)
    for row in found:
        print("differs from the answer alone:", row)
        assert min(row["gap"], row["margin"]) < TIE
    assert len(found) <= len(run["asks"]) // 100
    left = sum(answer.left for answer in run["together"])
    tokens, whole = (
        sum(len(c.tokens) for answer in run[kind] for c in answer.choices.values()) for kind in ("together", "alone")
    )
    unwanted = whole - run["generated"]  # vLLM's own count of aborted requests leaves out those whose client is gone
    print(
        f"{len(run['asks'])} requests, {left} left early, {tokens} tokens, "
        f"{unwanted:.0f} tokens not generated for those, {run['preemptions']:.0f} preemptions, "
        f"{len(found)} near ties; MiB by tenths of the run: {run['memory'].by_tenths()}"
    )
    assert left > len(run["asks"]) // 20
    assert run["preemptions"] > 0
    assert unwanted > 0
    answers = {str([c.tokens for c in answer.choices.values()]) for answer in run["alone"]}
    assert len(answers) > len(run["asks"]) * 0.8, "answers must vary"


def test_a_short_load(checkpoint, tmp_path):
    check(load(checkpoint, 120, 1, tmp_path / "log.txt"), checkpoint)


@pytest.mark.slow
def test_two_thousand_requests(checkpoint, tmp_path):
    run = load(checkpoint, 2000, 2, tmp_path / "log.txt")
    check(run, checkpoint)
    grown = run["memory"].growth()
    print("MiB grown over the last half:", grown)
    assert max(grown.values()) < FLAT
