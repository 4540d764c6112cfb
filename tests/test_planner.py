"""Rounds whose sizes hold whatever the rows hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confident_decoding import planner
from confident_decoding.planner import Schedule, dense_rows, look_ahead, rows_per_read, schedule, warm_up_sizes


def check_every_course(rows, depths, per_read, window=None):
    """However many rows end at each depth: no round is larger than its tensors, and the window's end is reached."""
    window = depths - 1 if window is None else window
    plan = schedule(rows, depths, window, per_read)
    if plan.first >= window:
        assert plan.rounds == 0
        return
    reached = {plan.first + 1}
    for _ in range(plan.rounds):
        following = set()
        for depth in reached - {window + 1}:
            remaining = window - depth + 1
            for alive in range(1, rows + 1):
                for scanned in (rows, alive):
                    ahead = look_ahead(rows, alive, depth, remaining, per_read, scanned)
                    assert 1 <= ahead <= remaining
                    assert alive * ahead <= plan.capacity, (rows, depths, per_read, alive, depth)
                    following.add(depth + ahead)
        reached = following or reached
    assert reached == {window + 1}, "rows would go on"


@given(rows=st.integers(1, 1024), depths=st.integers(2, 40), per_read=st.integers(1, 1024), less=st.integers(-20, 38))
@settings(max_examples=100, deadline=None)
def test_any_course_of_a_scan_fits(rows, depths, per_read, less):
    check_every_course(rows, depths, per_read, max(1, depths - 1 - max(0, less)))


@pytest.mark.parametrize("depths", [2, 3, 10, 15, 20, 21, 32, 36])
def test_any_course_of_a_scan_fits_where_rules_meet(depths):
    for rows in (*range(2, 72), 100, 128, 169, 170, 200, 256):
        check_every_course(rows, depths, 169)


def test_few_rows_are_scanned_at_once():
    assert schedule(8, 10, 9, 160) == Schedule(9)
    assert schedule(24, 10, 9, 160) == Schedule(9)
    assert schedule(25, 10, 9, 160).rounds == 1, "of whose rows most will have ended"
    assert schedule(5000, 10, 9, None) == Schedule(9)


def test_the_boundary_that_doctor_names():
    assert dense_rows(10, 170) == 25
    assert schedule(25, 10, 9, 170).rounds == 0
    assert schedule(26, 10, 9, 170).rounds > 0
    assert dense_rows(10, 32, counts_on_host=True) == 3, "depths 1 to 9 of three rows are 27, of four 36"
    assert dense_rows(40, 3) == dense_rows(1, 1, counts_on_host=True) == 1


def test_the_first_reading_is_shared_until_depth_zero_fills_it():
    assert schedule(80, 10, 9, 160).first == 1
    assert schedule(64, 10, 9, 170).first == 2, "2.7 fit; the third costs less than leaving it to a round"
    assert schedule(70, 10, 9, 170).first == 1
    assert schedule(40, 10, 9, 160).first == 3
    assert schedule(32, 10, 9, 170).first == 4
    assert schedule(159, 10, 9, 160).first == 1
    assert schedule(256, 10, 9, 160).first == 0


def test_rounds_are_few():
    for rows in (64, 128, 256, 512):
        assert schedule(rows, 10, 9, 160).rounds <= 5


def test_look_ahead_ends_the_scan_where_two_readings_pay_for_it():
    assert look_ahead(256, 35, 2, 8, 160) == 8
    assert look_ahead(256, 50, 2, 8, 160) == 3
    assert look_ahead(256, 256, 1, 9, 160) == 1
    assert look_ahead(256, 92, 1, 9, 160) == look_ahead(256, 150, 1, 9, 160) == 2, "a threshold has spared the others"
    assert look_ahead(150, 150, 1, 9, 160) == 1
    assert look_ahead(256, 128, 1, 9, 170) == 2
    assert look_ahead(256, 128, 1, 9, 170, scanned=130) == 1, (
        "the others are a graph's padding, or keep the final layer"
    )
    assert look_ahead(256, 128, 1, 9, 170, scanned=200) == 2
    assert look_ahead(256, 92, 2, 8, 160) == 2
    assert look_ahead(256, 60, 2, 8, 160) == 2, "2.7 fit"
    assert look_ahead(256, 256, 2, 8, 160) == 2


def test_no_round_is_launched_for_rows_that_hardly_ever_are_there():
    assert look_ahead(64, 64, 3, 7, 160) == 7, "all of 64 rows: 2.8 readings, as good as never"
    assert schedule(64, 10, 9, 160).rounds == 1
    assert schedule(128, 10, 9, 160).rounds == 3
    assert look_ahead(128, 128, 6, 4, 160) == 4
    assert look_ahead(129, 129, 6, 5, 160) == 2


def test_heads_that_only_the_model_can_apply_are_scanned_at_once(monkeypatch):
    monkeypatch.setattr(planner, "has_kernels", lambda device: True)
    gpu = torch.device("cuda")
    assert rows_per_read(gpu, 4096, 151_936, torch.bfloat16, plain=False) is None
    assert rows_per_read(gpu, 4096, 151_936, torch.float32, plain=True) is None
    assert rows_per_read(gpu, 4095, 151_936, torch.bfloat16, plain=True) is None
    assert rows_per_read(gpu, 4096, 0, torch.bfloat16, plain=True) is None
    monkeypatch.setattr(planner, "has_kernels", lambda device: False)
    assert rows_per_read(gpu, 4096, 151_936, torch.bfloat16, plain=True) is None


@pytest.mark.parametrize(("hidden", "columns"), [(4096, 151_936), (4096, 75_968), (8192, 128_256), (576, 49_152)])
def test_rows_that_pay_for_a_reading(hidden, columns, monkeypatch):
    """H and V nearly cancel; a small head is dearer by its launches."""
    monkeypatch.setattr(planner, "has_kernels", lambda device: True)
    per_read = rows_per_read(torch.device("cuda"), hidden, columns, torch.bfloat16, plain=True)
    assert 150 < per_read < (190 if hidden > 1000 else 1024)


@given(depths=st.integers(2, 40), per_read=st.integers(20, 1024))
def test_warm_up_meets_every_form(depths, per_read):
    sizes = warm_up_sizes(depths, per_read)
    forms = {
        (rows > 64, s.rounds > 0, s.first > 0)
        for rows in range(1, planner.MOST_ROWS + 1, 3)
        for s in [schedule(rows, depths, depths - 1, per_read)]
    }
    warmed = {
        (rows > 64, s.rounds > 0, s.first > 0) for rows in sizes for s in [schedule(rows, depths, depths - 1, per_read)]
    }
    assert forms <= warmed
