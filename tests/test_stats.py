"""Statistics: exact counting, and the log line character by character."""

import math
import re

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from confident_decoding.config import ConfidentDecodingConfig
from confident_decoding.kernels import twins
from confident_decoding.model_head import Selection
from confident_decoding.selection import RowRules
from confident_decoding.stats import LogLines, PendingSnapshot, Snapshot, Totals, format_line, new_counters

CPU = torch.device("cpu")
NOTHING = Totals((0,) * 10, 0, 0)
RULES = RowRules(10, 9)
LINE = re.compile(
    r"\[trough-decoding\] step=\d+ tokens=\d+ layers=\d+ select_method=\S+ p=\d\.\d\d avg_selected_layer=\d+\.\d\d "
    r"min_selected_layer=\d+ avg_backtrack_depth=\d+\.\d\d max_backtrack_depth=\d+ tokens_kept_at_final=\d+/\d+ "
    r"sample=\[(\(\d+, \d+\.\d\d\)(, )?){0,4}\]"
)


def selection(depths, entropies=None, top_ids=None):
    return Selection(torch.empty(len(depths), 0), torch.tensor(depths, dtype=torch.int64), None, entropies, top_ids)


def count(counters, depths, prompt=False, mirror=None):
    twins.count(counters, mirror, prompt, selection(depths), RULES, 9)


def totals(**rows):
    """``totals(d0=5, d3=2)``."""
    return Totals(tuple(rows.get(f"d{depth}", 0) for depth in range(10)), 0, 0)


def test_the_documented_line():
    plan = ConfidentDecodingConfig().resolve(36)
    before = totals(d0=100, d9=7)
    snapshot = Snapshot(3000, totals(d0=105, d1=1, d2=1, d3=1, d9=7), ((0, 0.41), (3, 2.0), (1, 0.125), (2, 1.0)))
    line = format_line(snapshot, before, plan, "trough")
    assert line == (
        "[trough-decoding] step=3000 tokens=8 layers=10 select_method=trough p=1.00 avg_selected_layer=8.25 "
        "min_selected_layer=6 avg_backtrack_depth=0.75 max_backtrack_depth=3 tokens_kept_at_final=5/8 "
        "sample=[(9, 0.41), (6, 2.00), (8, 0.12), (7, 1.00)]"
    )
    assert LINE.fullmatch(line)


def test_last_mk_counts_k_plus_one_layers():
    plan = ConfidentDecodingConfig(select_method="last-m8").resolve(36)
    snapshot = Snapshot(1, Totals((0,) * 8 + (2,), 0, 0), ((8, 1.0), (8, 2.0)))
    line = format_line(snapshot, Totals((0,) * 9, 0, 0), plan, "last-m8")
    assert "layers=9 " in line
    assert "avg_selected_layer=0.00 min_selected_layer=0 avg_backtrack_depth=8.00" in line


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=6))
def test_counts_add_up_over_steps(steps):
    counters = new_counters(9, CPU)
    for depths in steps:
        count(counters, depths)
        count(counters, [7, 7], prompt=True)
    everything = [d for depths in steps for d in depths]
    last = torch.tensor(steps[-1], dtype=torch.int64)
    pending = PendingSnapshot(len(steps), counters, last, torch.full((len(last),), 0.5))
    assert pending.ready()
    snapshot = pending.read()
    assert snapshot.step == len(steps)
    assert snapshot.sample == tuple((d, 0.5) for d in steps[-1][:4])
    rows = snapshot.totals
    assert rows.by_depth == tuple(np.bincount(everything, minlength=10))
    assert rows.tokens == len(everything)
    assert rows.kept_at_final == everything.count(0)
    assert rows.depth_sum == sum(everything)
    assert rows.depth_max == max(everything, default=0)
    prompt = Totals.of(counters[1].tolist())
    assert prompt == Totals((0,) * 7 + (2 * len(steps), 0, 0), 0, 0), "prompt rows are counted apart"


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=6), st.data())
def test_lines_tell_what_has_come_since_the_line_before(steps, data):
    plan = ConfidentDecodingConfig().resolve(36)
    counters, lines, since, told = new_counters(9, CPU), LogLines(plan, "trough"), [], 0
    for number, depths in enumerate(steps):
        count(counters, depths)
        since += depths
        if not data.draw(st.booleans()):
            continue
        lines.take(number, counters, torch.tensor(depths), torch.ones(len(depths)))
        if data.draw(st.booleans()):  # else it comes with the next
            continue
        text = list(lines.arrived())
        assert text
        assert sum(int(re.search(r" tokens=(\d+) ", line)[1]) for line in text) == len(since)
        assert sum(int(re.search(r"final=(\d+)/", line)[1]) for line in text) == since.count(0)
        assert max(int(re.search(r"max_backtrack_depth=(\d+) ", line)[1]) for line in text) == max(since)
        told, since = told + len(since), []
    assert told + len(since) == sum(map(len, steps))


def test_a_snapshot_is_a_copy():
    counters = new_counters(9, CPU)
    depths = torch.tensor([1, 2])
    count(counters, [1, 2])
    pending = PendingSnapshot(1, counters, depths, torch.tensor([0.1, 0.2]))
    depths.fill_(9)
    count(counters, [9, 9])
    assert pending.read().totals == totals(d1=1, d2=1)
    assert [d for d, _ in pending.read().sample] == [1, 2]


@pytest.mark.parametrize("prompt", [False, True])
def test_the_mirror_follows(prompt):
    counters, mirror = new_counters(9, CPU), torch.full((2, 12), -1, dtype=torch.int64)
    for _ in range(3):
        count(counters, [0, 3, 3], prompt, mirror)
        assert torch.equal(mirror, counters)
    assert mirror[int(prompt)].tolist() == [3, 0, 0, 6, *[0] * 8]
    count(counters, [], prompt, mirror)
    assert mirror[int(prompt)].sum() == 9


def test_of_a_fixed_layer_those_fall_back_that_nothing_keeps_at_the_final_one():
    counters = new_counters(5, CPU)
    depths, limits = [5, 0, 0, 5], torch.tensor([0, 0, -1, 0], dtype=torch.int32)
    twins.count(counters, None, False, selection(depths), RowRules(6, limits), None)
    assert counters[0].tolist() == [2, 0, 0, 0, 0, 2, 0, 1]
    twins.count(counters, None, True, selection(depths), RowRules(6, 0), None)
    assert counters[1].tolist() == [2, 0, 0, 0, 0, 2, 0, 2]


@given(st.data())
def test_what_falls_back_and_what_changes(data):
    """Against the definition, row by row, with numbers missing where nothing has looked and where nothing can."""
    rows, window = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 5))
    value = st.sampled_from([math.nan, 0.0, 1.0, 2.0, 3.0])
    entropies = [[data.draw(value) for _ in range(6)] for _ in range(rows)]
    limits = [data.draw(st.integers(-1, 5)) for _ in range(rows)]
    thresholds = [data.draw(st.sampled_from([0.0, 1.0])) for _ in range(rows)]
    depths = [data.draw(st.integers(0, 5)) for _ in range(rows)]
    ids = np.array([[data.draw(st.integers(0, 2)) for _ in range(6)] for _ in range(rows)])
    counters = new_counters(5, CPU)
    rules = RowRules(6, torch.tensor(limits, dtype=torch.int32), 0, torch.tensor(thresholds))
    chosen = selection(depths, torch.tensor(entropies).T, torch.tensor(ids.T.copy(), dtype=torch.int32))
    twins.count(counters, None, False, chosen, rules, window)
    found = Totals.of(counters[0].tolist())
    assert found.by_depth == tuple(np.bincount(depths, minlength=6))
    assert found.changed == sum(ids[row, 0] != ids[row, depths[row]] for row in range(rows))
    scanned = [
        (h, min(limit, window))
        for h, limit, threshold in zip(entropies, limits, thresholds, strict=True)
        if min(limit, window) > 0 and not 0 < threshold >= h[0]
    ]
    assert found.fell_back == sum(oracle.ends_at_nan(h, limit) for h, limit in scanned)
