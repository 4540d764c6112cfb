"""The real multi-process ``vllm serve``: configuration errors, the armed line, statistics, metrics."""

import contextlib
import io
import os
import re
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ENGINE_ENV, on
from docs.blocks import program
from openai import APIStatusError, OpenAI
from oracle import TransformersOracle
from scraping import by_depth, scrape, settled

from demo.server import command, free_port, running

pytestmark = pytest.mark.server

SERVER_ENV = {k: v for k, v in ENGINE_ENV.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
TOKENS = 24
SMALL = ("--enforce-eager", "--max-model-len", "256", "--dtype", "float32", "--served-model-name", "m")


FILES = "confident-decoding-metrics-*/*"


def complete(url, text, **options):
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    extra = {"ignore_eos": True, "return_tokens_as_token_ids": True, **options.pop("extra_body", {})}
    reply = client.completions.create(
        model="m", prompt=text, temperature=0, max_tokens=TOKENS, logprobs=0, extra_body=extra, **options
    )
    return [int(token.removeprefix("token_id:")) for token in reply.choices[0].logprobs.tokens]


def complete_with(url, text, p):
    return complete(url, text, extra_body={"vllm_xargs": {"confident_p": p}})


def shown_request(url, p):
    """What the documentation's program prints, with this ``p`` in the place of 0."""
    code = program("docs/requests.md", "from openai import OpenAI")
    for shown, put in {
        "http://localhost:8000": url,
        '"MODEL"': '"m"',
        '"confident_p": 0': f'"confident_p": {p}',
    }.items():
        assert shown in code
        code = code.replace(shown, put)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    return printed.getvalue().strip()


BAD_ARGUMENTS = [{"confident_p": 3}, {"confident_select_method": "last-m40"}, {"confident_window": 3}]


def refusal(url, arguments):
    """Status and message of a completion and a chat that ask for this."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    found = []
    for call in (
        lambda **keys: client.completions.create(model="m", prompt="x", max_tokens=2, **keys),
        lambda **keys: client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], max_tokens=2, **keys
        ),
    ):
        try:
            call(extra_body={"vllm_xargs": arguments})
            found.append((200, ""))
        except APIStatusError as error:
            found.append((error.status_code, str(error)))
    return found


def start_and_fail(model, config, *options, timeout=180):
    """Run the command line until it ends; its exit code and output."""
    env = {**os.environ, **SERVER_ENV}
    done = subprocess.run(
        command(model, free_port(), config, *SMALL, *options),
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (
            on(trough_max_backtrack_layer=10, p=1.5),
            ["'trough_max_backtrack_layer'", "did you mean 'trough_max_backtrack_layers'", "p=1.5"],
        ),
        ({"enable_multi_layer_entropy_selecton": True}, ["did you mean 'enable_multi_layer_entropy_selection'"]),
        (on(select_method="last-m30"), ["select_method='last-m30'", "30", "'last-m29'"]),
    ],
    ids=["misspelt-and-range", "misspelt-switch", "last-mK-too-large"],
)
def test_a_bad_configuration_stops_the_start_before_weights_load(config, parts, smollm2):
    code, output = start_and_fail(smollm2, config)
    assert code != 0
    for part in parts:
        assert part in output
    assert "Starting to load model" not in output
    assert "EngineCore" not in output, "the message must come from the front-end process"
    assert len(re.findall(r"^confident_decoding\.config\.ConfigError: confident-decoding", output, re.M)) == 1


def processes_with(variable):
    """Ids of all processes with this ``NAME=value`` in their environment, and of all in their sessions.

    The engine's processes set their titles over the memory that /proc shows as their environment.
    """
    sessions, marked = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name)
            sessions[pid] = os.getsid(pid)
            if variable.encode() in (path / "environ").read_bytes():
                marked.add(pid)
    started = {sessions[pid] for pid in marked if pid in sessions}
    return sorted(pid for pid, session in sessions.items() if pid in marked or session in started)


@pytest.fixture(scope="module")
def one_worker(smollm2, tmp_path_factory):
    """Answers and log of one server on one worker, statistics at every second step."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    texts = ["The sea is", "Gravity means that", "My favourite food"]
    mark = f"CONFIDENT_DECODING_TEST={uuid.uuid4()}"
    temporary = tmp_path_factory.mktemp("tmp")
    env = {**SERVER_ENV, "TMPDIR": str(temporary), **dict([mark.split("=")])}
    with running(smollm2, log, on(trough_log_interval=2, trough_metrics=True), *SMALL, env=env) as url:
        before = scrape(url)
        during = processes_with(mark)
        alone = [complete(url, text) for text in texts]
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda text: complete(url, text), texts))
        with ThreadPoolExecutor(6) as pool:  # one server, both kinds of decoding in one batch
            asked = [(text, p) for text in texts for p in (0, 1)]
            by_p = dict(zip(asked, pool.map(lambda pair: complete_with(url, *pair), asked), strict=True))
        refusals = [refusal(url, arguments) for arguments in BAD_ARGUMENTS]
        metrics = settled(url, tokens=12 * TOKENS)
        shown = [shown_request(url, p) for p in (0, 1)]
        files = sorted(path.name.split("_")[0] for path in temporary.glob(FILES))
    return {
        "before": before,
        "metrics": metrics,
        "files": [files, list(temporary.glob("confident-decoding-*"))],
        "alone": alone,
        "together": together,
        "texts": texts,
        "by_p": by_p,
        "refusals": refusals,
        "shown": shown,
        "log": log.read_text(),
        "during": during,
        "after": [pid for pid in {*during, *processes_with(mark)} if Path(f"/proc/{pid}").exists()],
    }


def test_the_documentations_request(one_worker):
    standard, confident = one_worker["shown"]
    assert "ravity" in standard
    assert "ravity" in confident
    assert standard != confident


def test_armed_once_from_a_worker_process(one_worker):
    (line,) = re.findall(r".*confident-decoding \S+ armed: .*", one_worker["log"])
    assert "(Worker" in line
    assert "INFO" in line
    assert "layers=[29, 28, 27, 26, 25, 24, 23, 22, 21, 20] of 0..29" in line


def test_lines_come_at_the_interval_and_once(one_worker):
    steps = [int(step) for step in re.findall(r"\[trough-decoding\] step=(\d+) ", one_worker["log"])]
    assert steps == list(range(2, steps[-1] + 1, 2))
    assert len(steps) > 30


def test_together_is_as_alone(one_worker):
    """A row's selection does not depend on its neighbours (float32, greedy)."""
    assert one_worker["together"] == one_worker["alone"]


def test_a_request_chooses_standard_or_confident_decoding(one_worker, smollm2):
    """In one batch; the standard answers are those of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # as ignore_eos
    for text, confident in zip(one_worker["texts"], one_worker["alone"], strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
        standard = out.tolist()
        assert one_worker["by_p"][text, 1] == confident
        assert one_worker["by_p"][text, 0] == standard
    assert any(one_worker["by_p"][text, 0] != one_worker["by_p"][text, 1] for text in one_worker["texts"])


def test_metrics_are_what_transformers_counts(one_worker, smollm2):
    """Depths, and tokens that another layer than the final one has made, position by position; greedy float32.

    Each text was asked for three times with the server's settings, and once with p = 0: there nothing moves.
    """
    from transformers import AutoTokenizer

    tokenizer, oracle = AutoTokenizer.from_pretrained(smollm2), TransformersOracle(smollm2, "float32")
    depths, changed = [0] * 11, 0
    for text, tokens in zip(one_worker["texts"], one_worker["alone"], strict=True):
        ids = tokenizer(text).input_ids
        sequence = [*ids, *tokens[:-1]]
        for _, depth, _, _ in oracle.select(sequence, len(ids) - 1, window=9):
            depths[depth] += 3
        final = oracle.rows(sequence, len(ids) - 1, [0])[0]
        changed += 3 * sum(int(row.argmax()) != token for row, token in zip(final, tokens, strict=True))
    depths[0] += 3 * TOKENS
    metrics, served = one_worker["metrics"], ("sampled", "0")
    assert by_depth(metrics) == depths
    assert metrics["tokens_total", *served] == metrics["depth_count", *served] == 12 * TOKENS
    assert metrics["tokens_not_final_total", *served] == sum(depths[1:])
    assert metrics["depth_sum", *served] == sum(depth * rows for depth, rows in enumerate(depths))
    assert metrics["tokens_argmax_changed_total", *served] == changed
    assert 0 < changed < sum(depths[1:]), "some tokens change, some only move"
    assert metrics["tokens_fell_back_total", *served] == 0


def test_every_series_is_served_from_the_start(one_worker):
    assert one_worker["before"].keys() == one_worker["metrics"].keys()
    assert set(one_worker["before"].values()) == {0}, "warm-up does not count"


def test_the_servers_metric_files_are_removed_with_it(one_worker):
    during, after = one_worker["files"]
    assert during == ["counter", "histogram"], "one worker counts"
    assert after == []


def test_a_bad_argument_is_a_400_that_names_it(one_worker):
    for arguments, replies in zip(BAD_ARGUMENTS, one_worker["refusals"], strict=True):
        for status, message in replies:
            assert status == 400, message
            assert next(iter(arguments)) in message


def test_every_process_of_the_server_is_stopped(one_worker):
    assert len(one_worker["during"]) >= 3, "front end, engine core, worker"
    assert one_worker["after"] == []


@pytest.mark.slow
def test_two_replicas_answer_as_one_and_each_logs_for_itself(one_worker, smollm2, tmp_path):
    log, texts = tmp_path / "log.txt", one_worker["texts"]
    config = on(trough_log_interval=2)
    with (
        running(smollm2, log, config, *SMALL, "--data-parallel-size", "2", env=SERVER_ENV) as url,
        ThreadPoolExecutor(6) as pool,  # enough at a time that both replicas get some
    ):
        together = list(pool.map(lambda text: complete(url, text), texts * 4))
    assert together == one_worker["alone"] * 4
    output = log.read_text()
    replica = r"\(Worker\S* pid=(\d+)\) INFO .*"
    replicas = re.findall(replica + "armed: ", output)
    assert len(replicas) == len(set(replicas)) == 2
    lines = re.findall(replica + r"\[trough-decoding\] step=(\d+) ", output)
    for one in replicas:
        steps = [int(step) for pid, step in lines if pid == one]
        assert steps == list(range(2, steps[-1] + 1, 2)), one
        assert len(steps) >= 12
