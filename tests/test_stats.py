"""Statistics: exact counting, and the log line character by character."""

import re

import torch
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.stats import PendingSnapshot, Snapshot, count, format_line, new_counters

CPU = torch.device("cpu")
LINE = re.compile(
    r"\[trough-decoding\] step=\d+ tokens=\d+ layers=\d+ select_method=\S+ p=\d\.\d\d avg_selected_layer=\d+\.\d\d "
    r"min_selected_layer=\d+ avg_backtrack_depth=\d+\.\d\d max_backtrack_depth=\d+ tokens_kept_at_final=\d+/\d+ "
    r"sample=\[(\(\d+, \d+\.\d\d\)(, )?){0,4}\]"
)


def test_the_documented_line():
    plan = ConfidentDecodingConfig().resolve(36)
    snapshot = Snapshot(3000, 8, 5, 6, 3, ((0, 0.41), (3, 2.0), (1, 0.125), (2, 1.0)))
    line = format_line(snapshot, plan, "trough")
    assert line == (
        "[trough-decoding] step=3000 tokens=8 layers=10 select_method=trough p=1.00 avg_selected_layer=8.25 "
        "min_selected_layer=6 avg_backtrack_depth=0.75 max_backtrack_depth=3 tokens_kept_at_final=5/8 "
        "sample=[(9, 0.41), (6, 2.00), (8, 0.12), (7, 1.00)]"
    )
    assert LINE.fullmatch(line)


def test_last_mk_counts_k_plus_one_layers():
    plan = ConfidentDecodingConfig(select_method="last-m8").resolve(36)
    line = format_line(Snapshot(1, 2, 0, 16, 8, ((8, 1.0), (8, 2.0))), plan, "last-m8")
    assert "layers=9 " in line
    assert "avg_selected_layer=0.00 min_selected_layer=0 avg_backtrack_depth=8.00" in line


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=6))
def test_counts_add_up_over_steps(steps):
    counters = new_counters(CPU)
    for depths in steps:
        count(counters, torch.tensor(depths, dtype=torch.int64), prompt=False)
        count(counters, torch.tensor([7, 7]), prompt=True)
    everything = [d for depths in steps for d in depths]
    last = torch.tensor(steps[-1], dtype=torch.int64)
    pending = PendingSnapshot(len(steps), counters, last, torch.full((len(last),), 0.5))
    assert pending.ready()
    snapshot = pending.read()
    assert snapshot == Snapshot(
        len(steps),
        len(everything),
        everything.count(0),
        sum(everything),
        max(everything, default=0),
        tuple((d, 0.5) for d in steps[-1][:4]),
    )
    assert counters[0].tolist() == [0, 0, 0, 0]
    assert counters[1].tolist() == [2 * len(steps), 0, 14 * len(steps), 7], "prompt rows are counted apart"


def test_a_snapshot_is_a_copy():
    counters = new_counters(CPU)
    depths = torch.tensor([1, 2])
    count(counters, depths, prompt=False)
    pending = PendingSnapshot(1, counters, depths, torch.tensor([0.1, 0.2]))
    depths.fill_(9)
    count(counters, depths, prompt=False)
    assert pending.read().depth_sum == 3
    assert [d for d, _ in pending.read().sample] == [1, 2]
