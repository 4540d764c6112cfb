"""Requests with settings of their own, side by side in one batch of a real engine.

Each must answer as a server with those settings does: the engines are in float32, where a row does not depend
on its neighbours. The same in vLLM's second model runner: test_second_runner.py, and `benchmarks.gpu_check requests`.
"""

import pytest
import torch
from conftest import greedy, on, tiny_engine

pytestmark = pytest.mark.engine

PROMPTS = [torch.randint(3, 512, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 11, 30, 17)]
MANY = [*PROMPTS, *([*prompt[::-1], 9] for prompt in PROMPTS)]
TOKENS = 24
SERVERS = {
    "default": on(),
    "off": {},
    "window of 3": on(trough_max_backtrack_layers=3),
    "trough-m1": on(select_method="trough-m1"),
    "trough-p1": on(select_method="trough-p1"),
    "last-m2": on(select_method="last-m2"),
    "threshold": on(trough_min_entropy=5.5),
}
REQUESTS = {
    "default": {},
    "off": {"confident_p": 0},
    "window of 3": {"confident_max_backtrack_layers": 3},
    "trough-m1": {"confident_select_method": "trough-m1"},
    "trough-p1": {"confident_select_method": "trough-p1"},
    "last-m2": {"confident_select_method": "last-m2"},
    "threshold": {"confident_min_entropy": 5.5},
}
BAD = {
    "confident_p=2": {"confident_p": 2},
    "confident_max_backtrack_layers=7": {"confident_max_backtrack_layers": 7},
    "confident_select_method='last-m6'": {"confident_select_method": "last-m6"},
    "did you mean 'confident_p'": {"confident_q": 1},
}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}


def asked(arguments, **options):
    return greedy(TOKENS, extra_args=arguments or None, **options)


def mixture(prompts=MANY):
    """All kinds of requests over and over, each prompt with each kind."""
    kinds = list(REQUESTS)
    pairs = [
        (prompt, kind) for number, prompt in enumerate(prompts) for kind in kinds[number % 2 :] + kinds[: number % 2]
    ]
    call = {"prompts": [p for p, _ in pairs], "sampling": [asked(REQUESTS[kind]) for _, kind in pairs]}
    return pairs, call


def mixing(seed, p=0.5, **extra):
    return greedy(TOKENS, seed=seed, extra_args={"confident_p": p} if p is not None else None, **extra)


@pytest.fixture(scope="module")
def path(tiny):
    return tiny("LlamaForCausalLM")


@pytest.fixture(scope="module")
def alone(run_engines, path):
    """Answers of a server for each kind."""
    jobs = [
        {"engine": tiny_engine(path, config), "calls": [{"prompts": MANY, "sampling": greedy(TOKENS)}]}
        for config in SERVERS.values()
    ]
    results = run_engines(jobs)
    return {
        kind: {tuple(prompt): tokens[0] for prompt, tokens in zip(MANY, result["calls"][0]["tokens"], strict=True)}
        for kind, result in zip(SERVERS, results, strict=True)
    }


ENGINES = {
    "default": (on(trough_log_interval=1), {}),
    "standard by default": (on(p=0.0), {}),
    "chunked prefill": (on(), {"max_num_batched_tokens": 16, "enable_chunked_prefill": True}),
    # Up to 8 requests of 30 to 54 tokens in 8 blocks of 32: some are preempted and computed again.
    "preemption": (on(), {"num_gpu_blocks_override": 9, "block_size": 32, "disable_log_stats": False}),
    "prefix cache, more requests than seats": (on(), {"enable_prefix_caching": True, "max_num_seqs": 5}),
}


@pytest.fixture(scope="module")
def together(run_engines, path):
    _, call = mixture()
    mixed = [
        {"prompts": PROMPTS[:1], "sampling": [mixing(5)]},
        {"prompts": MANY[::-1], "sampling": [mixing(n if n != 7 else 5) for n in range(8)]},
        {"prompts": PROMPTS[:1], "sampling": [mixing(6)]},
        {"prompts": PROMPTS[:1], "sampling": [{**mixing(5), "temperature": 0.8}]},
        {"prompts": PROMPTS[:1], "sampling": [{**mixing(5), "temperature": 0.8, "n": 3}]},
    ]
    seeded = {"prompts": MANY, "sampling": [mixing(number) for number in range(len(MANY))]}
    of_standard = {"prompts": MANY, "sampling": [asked({"confident_p": number % 2}) for number in range(len(MANY))]}
    jobs = []
    for name, (config, options) in ENGINES.items():
        calls = [of_standard] if name == "standard by default" else [call, seeded]
        job = {"engine": tiny_engine(path, config, **options), "calls": calls}
        job["counters"] = name == "preemption"
        if name == "default":
            job["calls"] += mixed
            job["refused"] = [asked(arguments) for arguments in BAD.values()]
            job["refused"] += [asked({"confident_p": 0}, prompt_logprobs=1), asked({"confident_p": 0})]
        jobs.append(job)
    # A server that mixes: a request's own seed decides, whatever is beside it.
    jobs.append(
        {
            "engine": tiny_engine(path, on(p=0.5)),
            "calls": [
                {"prompts": PROMPTS[:1], "sampling": [mixing(5, None)]},
                {"prompts": MANY[::-1], "sampling": [mixing(None if n != 7 else 5, None) for n in range(8)]},
            ],
        }
    )
    results = dict(zip([*ENGINES, "mixing"], run_engines(jobs), strict=True))
    # ngram speculation imports numba, after which this vLLM cannot start another engine in the process.
    (results["ngram"],) = run_engines(
        [{"engine": tiny_engine(path, on(), speculative_config=NGRAM), "calls": [call, seeded]}]
    )
    return results


def test_the_kinds_differ(alone):
    """Or equal answers would mean nothing."""
    answers = {kind: str(sorted(by_prompt.items())) for kind, by_prompt in alone.items()}
    assert len(set(answers.values())) == len(SERVERS)


ALL = ["default", "chunked prefill", "preemption", "prefix cache, more requests than seats", "ngram"]


@pytest.mark.parametrize("engine", ALL)
def test_every_request_is_answered_as_by_a_server_of_its_settings(engine, together, alone):
    pairs, _ = mixture()
    tokens = together[engine]["calls"][0]["tokens"]
    wrong = [
        (number, kind)
        for number, ((prompt, kind), (found,)) in enumerate(zip(pairs, tokens, strict=True))
        if found != alone[kind][tuple(prompt)]
    ]
    assert wrong == []


def test_requests_were_preempted(together):
    assert together["preemption"]["counters"]["vllm:num_preemptions"] > 5


def test_standard_by_default_and_confident_where_asked(together, alone):
    (call,) = together["standard by default"]["calls"]
    for number, (prompt, (found,)) in enumerate(zip(MANY, call["tokens"], strict=True)):
        assert found == alone["default" if number % 2 else "off"][tuple(prompt)]


def test_requests_that_are_not_valid_are_refused_by_name_and_the_engine_lives(together):
    *refused, with_prompt_logprobs, good = together["default"]["refusals"]
    for words, message in zip(BAD, refused, strict=True):
        assert words in message
    assert "prompt_logprobs" in with_prompt_logprobs
    assert good is None


def test_a_seeded_request_mixes_the_same_whatever_is_beside_it(together, alone):
    first, among, other_seed, sampled, several = (call["tokens"] for call in together["default"]["calls"][2:])
    assert among[7] == first[0]
    prompt = tuple(PROMPTS[0])
    assert first[0][0] not in (alone["default"][prompt], alone["off"][prompt]), "it must mix"
    assert other_seed[0] != first[0]
    # vLLM gives the samples of a request seeds of their own, the first one the request's.
    assert several[0][0] == sampled[0][0]
    assert len({tuple(tokens) for tokens in several[0]}) > 1


@pytest.mark.parametrize("engine", ALL[1:])
def test_a_seed_mixes_the_same_however_its_rows_come(engine, together):
    """In parts, again after preemption, from the cache, as drafts that are verified."""
    found = together[engine]["calls"][1]["tokens"]
    assert found == together["default"]["calls"][1]["tokens"]


def test_the_servers_own_mixing_follows_a_requests_seed(together):
    first, among = (call["tokens"] for call in together["mixing"]["calls"])
    assert among[7] == first[0]
    assert first[0] == together["default"]["calls"][2]["tokens"][0]


def test_statistics_count_what_was_selected(together, alone):
    """The log line's numbers are after the requests' own settings."""
    kept = [
        line.split("tokens_kept_at_final=")[1].split()[0] for line in together["default"]["lines"] if "step=" in line
    ]
    assert any(0 < int(a) < int(b) for a, b in (x.split("/") for x in kept))
