"""What a worker publishes and what a scrape reads, without an engine: prometheus_client's own files and collector."""

import math
import os
import subprocess
import sys
import textwrap
import threading
import types
import weakref

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from scraping import read

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.plugin import metrics
from confident_decoding.plugin.metrics import Publisher, publish
from confident_decoding.stats import new_counters

PLAN = ConfidentDecodingConfig(trough_max_backtrack_layers=4).resolve(30)
LABELS = {"model_name": "m", "engine": "0"}
SAMPLED = [50, 30, 15, 5, 42, 3]  # by depth; changed, fell back
PROMPT = [7, 0, 0, 1, 1, 0]


def scrape(folder):
    """What a server would serve, read as Prometheus would."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return read(generate_latest(registry).decode())


def counted(sampled=SAMPLED, prompt=PROMPT):
    return torch.tensor([sampled, prompt])


def test_a_scrape_reads_what_was_counted(tmp_path):
    Publisher(tmp_path, LABELS, PLAN, counted())
    found = scrape(tmp_path)
    assert {key[:2]: value for key, value in found.items() if len(key) == 3} == {
        ("tokens_total", "sampled"): 100,
        ("tokens_not_final_total", "sampled"): 50,
        ("tokens_argmax_changed_total", "sampled"): 42,
        ("tokens_fell_back_total", "sampled"): 3,
        ("depth_count", "sampled"): 100,
        ("depth_sum", "sampled"): 30 + 2 * 15 + 3 * 5,
        ("tokens_total", "prompt"): 8,
        ("tokens_not_final_total", "prompt"): 1,
        ("tokens_argmax_changed_total", "prompt"): 1,
        ("tokens_fell_back_total", "prompt"): 0,
        ("depth_count", "prompt"): 8,
        ("depth_sum", "prompt"): 3,
    }
    buckets = {key[3]: value for key, value in found.items() if key[:2] == ("depth_bucket", "sampled")}
    assert buckets == {0: 50, 1: 80, 2: 95, 3: 100, math.inf: 100}, "cumulative, as Prometheus wants them"


def test_with_a_fixed_layer_there_is_nothing_to_compare_with(tmp_path):
    plan = ConfidentDecodingConfig(select_method="last-m3").resolve(30)
    Publisher(tmp_path, LABELS, plan, counted())
    assert {key[0] for key in scrape(tmp_path)} == {
        "tokens_total",
        "tokens_not_final_total",
        "tokens_fell_back_total",
        "depth_bucket",
        "depth_sum",
        "depth_count",
    }


def test_every_series_is_there_before_the_first_token(tmp_path):
    """Rates need a first value, and an alert on a missing series must be about a missing engine."""
    publisher = Publisher(tmp_path, LABELS, PLAN, new_counters(3, torch.device("cpu")))
    before = scrape(tmp_path)
    assert set(before.values()) == {0.0}
    publisher._mirror.copy_(counted())
    publisher.publish()
    assert scrape(tmp_path).keys() == before.keys()


def test_a_reader_never_sees_a_file_that_is_being_made(tmp_path, monkeypatch):
    seen = []
    write = Publisher._write
    monkeypatch.setattr(Publisher, "_write", lambda *args: (seen.append(scrape(tmp_path)), write(*args)))
    Publisher(tmp_path, LABELS, PLAN, counted())
    assert seen == [{}, {}]
    assert len(scrape(tmp_path)) > 20


def test_engines_have_series_of_their_own(tmp_path):
    for engine in ("0", "1"):
        Publisher(tmp_path, {**LABELS, "engine": engine}, PLAN, counted(prompt=[int(engine)] * 6))
    found = scrape(tmp_path)
    assert [found["tokens_total", "prompt", engine] for engine in "01"] == [0, 4]
    assert [found["tokens_total", "sampled", engine] for engine in "01"] == [100, 100]


def test_a_counter_does_not_fall_when_its_worker_starts_anew(tmp_path):
    first = Publisher(tmp_path, LABELS, PLAN, counted())
    before = scrape(tmp_path)
    first.close()
    mirror = new_counters(3, torch.device("cpu"))
    second = Publisher(tmp_path, LABELS, PLAN, mirror)
    assert scrape(tmp_path) == before
    mirror[0, 0] = 11
    second.publish()
    assert scrape(tmp_path)["tokens_total", "sampled", "0"] == 111
    assert scrape(tmp_path)["depth_bucket", "sampled", "0", 0] == 61


def test_the_thread_publishes_what_comes_after_the_last_call(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "PERIOD", 0.01)
    mirror = new_counters(3, torch.device("cpu"))
    publisher = Publisher(tmp_path, LABELS, PLAN, mirror)
    told = threading.Event()
    write = publisher._write
    publisher._write = lambda *args: (write(*args), told.set())
    publisher.start()
    assert not told.wait(0.2), "nothing has changed, nothing is written"
    mirror.copy_(counted())
    assert told.wait(60)
    publisher.close()
    assert scrape(tmp_path)["tokens_total", "sampled", "0"] == 100
    mirror.add_(1)
    publisher.publish()
    publisher.close()
    assert scrape(tmp_path)["tokens_total", "sampled", "0"] == 100, "after its end it writes no more"


class Owner:
    """A model."""


def config(folder=None, engine=3):
    ns = types.SimpleNamespace
    made = ns(model_config=ns(served_model_name="m"), parallel_config=ns(data_parallel_index=engine))
    if folder is not None:
        made.confident_decoding_metrics = str(folder)
    return made


def test_a_model_that_goes_publishes_for_the_last_time_and_ends_its_thread(tmp_path, monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    owner, threads = Owner(), threading.active_count()
    mirror = publish(config(tmp_path), PLAN, new_counters(3, torch.device("cpu")), owner)
    assert threading.active_count() == threads + 1
    assert all(thread.daemon for thread in threading.enumerate() if "confident" in thread.name)
    mirror.copy_(counted())
    gone = weakref.ref(owner)
    del owner
    assert gone() is None, "nothing keeps the model"
    assert scrape(tmp_path)["tokens_total", "sampled", "3"] == 100
    for thread in threading.enumerate():
        if "confident" in thread.name:
            thread.join(60)
    assert threading.active_count() == threads


def test_vllms_own_folder_is_used_where_nothing_was_offered(tmp_path, monkeypatch):
    """Several API processes: the launcher has no front end of its own; its environment has the folder."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    owner = Owner()
    assert publish(config(), PLAN, new_counters(3, torch.device("cpu")), owner) is not None
    assert scrape(tmp_path)["tokens_total", "sampled", "3"] == 0


@pytest.mark.parametrize("offered", [None, "elsewhere"])
def test_without_a_folder_on_this_machine_one_warning_says_so(offered, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    given = config(None if offered is None else tmp_path / offered)
    assert publish(given, PLAN, new_counters(3, torch.device("cpu")), Owner()) is None
    (record,) = caplog.records
    assert "exports no metrics" in record.getMessage()
    assert "API server" in record.getMessage()
    assert os.listdir(tmp_path) == []


def python(code, **env):
    clean = {k: v for k, v in os.environ.items() if k != "PROMETHEUS_MULTIPROC_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, env={**clean, **env}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_front_end_serves_its_folder_beside_other_metrics_and_removes_it():
    out = python("""
        import os, types
        import prometheus_client
        prometheus_client.Counter("vllm:something", "x").inc()
        from confident_decoding.plugin import metrics
        configs = [types.SimpleNamespace(), types.SimpleNamespace()]
        for config in configs:
            metrics.offer(config)
        (folder,) = {config.confident_decoding_metrics for config in configs}  # one a process
        import torch
        from pathlib import Path
        from confident_decoding.config import ConfidentDecodingConfig
        mirror = torch.tensor([[1, 2, 3, 1, 1]] * 2)
        plan = ConfidentDecodingConfig(trough_max_backtrack_layers=3).resolve(9)
        metrics.Publisher(Path(folder), {"model_name": "m", "engine": "0"}, plan, mirror)
        text = prometheus_client.generate_latest().decode()
        assert "vllm:something_total 1.0" in text
        assert 'confident_decoding_tokens_total{engine="0",model_name="m",rows="sampled"} 6.0' in text, text
        if os.fork() == 0:
            raise SystemExit  # a child that ends as Python programs end
        os.wait()
        assert os.path.isdir(folder)
        print(folder)
    """)
    assert out
    assert not os.path.exists(out)


def test_the_front_end_makes_no_folder_where_vllm_has_one(tmp_path):
    out = python(
        """
        import types, tempfile
        tempfile.mkdtemp = None
        from confident_decoding.plugin import metrics
        config = types.SimpleNamespace()
        metrics.offer(config)
        print(config.confident_decoding_metrics)
        """,
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
    )
    assert out == str(tmp_path)
