"""Metrics of a server of several processes: two tensor-parallel workers, two API processes."""

import json
import re
import urllib.request

import pytest
import torch
from conftest import on
from scraping import by_depth, scrape_and_pid, settled
from test_server import SERVER_ENV

from demo.server import running

pytestmark = pytest.mark.server
PROMPTS = [torch.randint(3, 500, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 30)]
TOKENS, SCRAPES = 16, 24
OPTIONS = ("--enforce-eager", "--max-model-len", "128", "--dtype", "float32", "--served-model-name", "m")
PROCESSES = ("--skip-tokenizer-init", "--tensor-parallel-size", "2", "--api-server-count", "2")


def complete(url, prompt, **options):
    """Token ids of a completion of token ids: there is no tokenizer."""
    question = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = json.dumps({**question, "return_token_ids": True, **options}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def several(tiny, tmp_path_factory):
    """Scrapes of a server on which each prompt was asked for once; its log."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    config = on(trough_log_interval=1, trough_metrics=True)
    path = tiny("LlamaForCausalLM-oddvocab")
    with running(path, log, config, *OPTIONS, *PROCESSES, env=SERVER_ENV) as url:
        tokens = [complete(url, prompt) for prompt in PROMPTS]
        settled(url, len(PROMPTS) * TOKENS)
        scrapes, pids = zip(*(scrape_and_pid(url) for _ in range(SCRAPES)), strict=True)
    return {"path": path, "tokens": tokens, "scrapes": list(scrapes), "pids": set(pids), "log": log.read_text()}


def test_every_api_process_serves_the_same_numbers(several):
    assert several["pids"] == {int(pid) for pid in re.findall(r"\(ApiServer_\d pid=(\d+)\)", several["log"])}
    assert len(several["pids"]) == 2
    assert several["scrapes"] == [several["scrapes"][0]] * SCRAPES


def test_two_ranks_count_once(several):
    metrics = several["scrapes"][0]
    assert {key[2] for key in metrics} == {"0"}
    assert metrics["tokens_total", "sampled", "0"] == len(PROMPTS) * TOKENS


def test_the_log_lines_tell_the_same(several):
    metrics, lines = several["scrapes"][0], re.findall(r"\[trough-decoding\] .*", several["log"])
    assert sum(int(re.search(r" tokens=(\d+) ", line)[1]) for line in lines) == len(PROMPTS) * TOKENS
    kept = sum(int(re.search(r"final=(\d+)/", line)[1]) for line in lines)
    assert metrics["tokens_not_final_total", "sampled", "0"] == len(PROMPTS) * TOKENS - kept
    assert 0 < kept < len(PROMPTS) * TOKENS


def test_changed_tokens_are_found_across_the_ranks(several):
    """The largest logit of the final layer and of the selected one may be in different ranks' parts."""
    from oracle import TransformersOracle

    oracle = TransformersOracle(several["path"], "float32")
    window, depths, changed = oracle.num_layers - 1, [0] * (oracle.num_layers + 1), 0
    for prompt, tokens in zip(PROMPTS, several["tokens"], strict=True):
        sequence = [*prompt, *tokens[:-1]]
        selected = oracle.select(sequence, len(prompt) - 1, window)
        for (logits, depth, _, _), token in zip(selected, tokens, strict=True):
            assert int(logits.argmax()) == token
            depths[depth] += 1
        final = oracle.rows(sequence, len(prompt) - 1, [0])[0]
        changed += sum(int(row.argmax()) != token for row, token in zip(final, tokens, strict=True))
    metrics = several["scrapes"][0]
    assert by_depth(metrics) == depths
    assert metrics["tokens_argmax_changed_total", "sampled", "0"] == changed
    assert changed > 0
