"""The trace as a file, and its figures against sums written out row by row."""

import json
import math

import numpy as np
import oracle
import pyarrow.parquet as pq
import pytest
from docs.blocks import program

from analysis import made
from confident_decoding.analysis import trace as module
from confident_decoding.analysis.summary import DROP_BINS, ENTROPY_BINS, summarise
from confident_decoding.analysis.trace import Trace, TraceWriter
from confident_decoding.analysis.words import KINDS, kind

LENGTHS = (7, 40, 1, 25, 130)


def spell(token):
    return made.WORDS[token]


@pytest.fixture
def recorded(tmp_path, request):
    """A trace of made-up sequences, and those."""
    sequences = [made.sequence(rows, seed=rows, tops=5) for rows in LENGTHS]
    writer = TraceWriter(tmp_path / "trace.parquet", made.about(**getattr(request, "param", {})))
    for sequence in sequences:
        writer.add(sequence, made.pieces(sequence))
    writer.close()
    return tmp_path / "trace.parquet", sequences


def test_the_file_holds_what_was_recorded(recorded):
    path, sequences = recorded
    table = pq.read_table(path)
    assert len(table) == sum(LENGTHS)
    assert table["sequence"].to_pylist() == [i for i, rows in enumerate(LENGTHS) for _ in range(rows)]
    assert table["position"].to_pylist() == [p for rows in LENGTHS for p in range(rows)]
    assert table["length"].to_pylist() == [rows for rows in LENGTHS for _ in range(rows)]
    assert table["token"].to_pylist() == [t for s in sequences for t in s.tokens.tolist()]
    assert table["text"].to_pylist() == [piece for s in sequences for piece in made.pieces(s)]
    entropy = np.array(table["entropy"].to_pylist(), np.float32)
    assert (entropy == np.concatenate([s.seen.entropies for s in sequences])).all()
    best = np.array(table["best_token"].to_pylist())
    assert (best == np.concatenate([s.seen.best for s in sequences])).all()
    depths = [oracle.trough(row, 3) for row in entropy]
    assert table["depth"].to_pylist() == depths
    assert table["final_token"].to_pylist() == best[:, 0].tolist()
    assert table["selected_token"].to_pylist() == [int(best[i, d]) for i, d in enumerate(depths)]
    assert table["replaced"].to_pylist() == [bool(best[i, d] != best[i, 0]) for i, d in enumerate(depths)]
    tops = table["top_tokens"].to_pylist()
    kept = [s.seen.top_tokens[i].ravel().tolist() if i < 5 else None for s in sequences for i in range(len(s.tokens))]
    assert tops == kept
    assert json.loads(table.schema.metadata[b"confident_decoding"])["window"] == 4


def test_the_documentations_program_reads_it(recorded, capsys):
    path, _ = recorded
    code = program("docs/analysis.md", "import pyarrow")
    assert "analysis/trace.parquet" in code
    exec(code.replace("analysis/trace.parquet", str(path)), {})
    rows = pq.read_table(path).to_pylist()
    assert capsys.readouterr().out.strip() == str([row["text"] for row in rows if row["replaced"]])


def test_reads_back_in_blocks_of_any_size(recorded):
    path, sequences = recorded
    expected = np.concatenate([s.seen.best for s in sequences])
    for rows in (1, 7, 1000):
        blocks = list(Trace(path).blocks(rows))
        assert max(len(block.position) for block in blocks) <= rows
        assert (np.concatenate([block.best_token for block in blocks]) == expected).all()
    assert Trace(path).about == made.about()


def test_tokens_end_where_no_best_tokens_were_kept(tmp_path):
    first, second = made.sequence(4), made.sequence(9, seed=1, tops=3)
    writer = TraceWriter(tmp_path / "t.parquet", made.about())
    for sequence in (first, second):
        writer.add(sequence, made.pieces(sequence))
    writer.close()
    tokens = list(Trace(tmp_path / "t.parquet").tokens())
    assert [token.sequence for token in tokens] == [0] * 4 + [1] * 3
    assert (tokens[5].top_tokens == second.seen.top_tokens[1]).all()
    assert (tokens[5].top_probabilities == second.seen.top_probabilities[1]).all()
    assert (tokens[5].entropy == second.seen.entropies[1]).all()


def test_rows_are_written_as_they_come(tmp_path, monkeypatch):
    """However long a trace is, little of it is in memory."""
    monkeypatch.setattr(module, "ROW_GROUP", 64)
    writer = TraceWriter(tmp_path / "t.parquet", made.about())
    for seed in range(20):
        sequence = made.sequence(30, seed=seed)
        writer.add(sequence, made.pieces(sequence))
        assert sum(batch.num_rows for batch in writer._pending) < 64
    writer.close()
    file = pq.ParquetFile(tmp_path / "t.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sum(sizes) == 600
    assert max(sizes) <= 64


def rows_of(sequences, window):
    """Every row, worked out alone: final entropy, drop, depth, tokens, tenth of its sequence."""
    for sequence in sequences:
        for i, (h, best) in enumerate(zip(sequence.seen.entropies, sequence.seen.best, strict=True)):
            d = oracle.trough(h, window - 1)
            yield {
                "h": h.astype(float),
                "depth": d,
                "final": int(best[0]),
                "chosen": int(best[d]),
                "decile": 10 * i // len(sequence.tokens) + 1,
                "extra": d if d == window - 1 else d + 1,
            }


def share(rows, test):
    rows = list(rows)
    return sum(map(test, rows)) / len(rows) if rows else None


def moved(row):
    return row["depth"] > 0


def replaced(row):
    return row["chosen"] != row["final"]


@pytest.mark.parametrize("block", [1, 17, 1 << 14])
def test_figures(recorded, block, monkeypatch):
    path, sequences = recorded
    blocks = Trace.blocks
    monkeypatch.setattr(Trace, "blocks", lambda self: blocks(self, block))
    summary = summarise(Trace(path), spell)
    rows = list(rows_of(sequences, 4))
    assert summary["tokens"] == len(rows)
    assert summary["sequences"] == len(LENGTHS)
    assert summary["not_at_final"] == pytest.approx(share(rows, moved))
    assert summary["replaced"] == pytest.approx(share(rows, replaced))
    assert summary["replaced_of_not_at_final"] == pytest.approx(share(filter(moved, rows), replaced))
    assert summary["mean_depth"] == pytest.approx(np.mean([row["depth"] for row in rows]))
    assert summary["extra_projections"] == pytest.approx(np.mean([row["extra"] for row in rows]))
    assert summary["depths"] == [sum(row["depth"] == d for row in rows) for d in range(4)]
    assert min(summary["depths"]) > 0, "the case is too easy to mean anything"
    drops = [row["h"][0] - row["h"][row["depth"]] for row in rows]
    assert summary["entropy"]["final"] == pytest.approx(np.mean([row["h"][0] for row in rows]))
    assert summary["entropy"]["drop"] == pytest.approx(np.mean(drops))
    assert summary["entropy"]["drop_of_not_at_final"] == pytest.approx(np.mean([x for x in drops if x > 0]))
    for place, found in enumerate(summary["entropy"]["drops"]):
        low, high = DROP_BINS[place : place + 2]
        assert (found["from"], found["to"]) == (low, None if math.isinf(high) else high)
        assert found["tokens"] == sum(low <= x < high and moved(row) for x, row in zip(drops, rows, strict=True))
    groups = {"unperturbed": lambda row: not moved(row), "perturbed": moved, "replaced": replaced}
    for name, test in groups.items():
        means = np.mean([row["h"] for row in rows if test(row)], axis=0)
        assert summary["entropy_by_depth"][name] == pytest.approx(means)
    for place, found in enumerate(summary["by_final_entropy"]):
        inside = [row for row in rows if ENTROPY_BINS[place] <= row["h"][0] < ENTROPY_BINS[place + 1]]
        assert found["tokens"] == len(inside)
        assert found["not_at_final"] == pytest.approx(share(inside, moved))
        assert found["replaced"] == pytest.approx(share(inside, replaced))
    for found in summary["by_position"]:
        inside = [row for row in rows if row["decile"] == found["decile"]]
        assert (found["tokens"], found["replaced"]) == (len(inside), pytest.approx(share(inside, replaced)))
        assert found["not_at_final"] == pytest.approx(share(inside, moved))


@pytest.mark.parametrize("block", [1, 17, 1 << 14])
def test_typical_tokens_are_the_nearest_to_their_groups_means(recorded, block, monkeypatch):
    path, sequences = recorded
    blocks = Trace.blocks
    monkeypatch.setattr(Trace, "blocks", lambda self: blocks(self, block))
    summary, rows = summarise(Trace(path), spell), list(rows_of(sequences, 4))
    places = [(s, p) for s, length in enumerate(LENGTHS) for p in range(length)]
    groups = {"unperturbed": [], "perturbed": [], "replaced": []}
    for place, row in zip(places, rows, strict=True):
        groups["replaced" if replaced(row) else "perturbed" if moved(row) else "unperturbed"].append((place, row))
    assert list(summary["typical"]) == list(groups)
    for name, found in summary["typical"].items():
        mean = summary["entropy_by_depth"][name][:4]
        place, row = min(groups[name], key=lambda at: math.dist(at[1]["h"][:4], mean))
        assert (found["sequence"], found["position"]) == place
        assert found["depth"] == row["depth"]
        assert found["entropy"] == row["h"].tolist()
        assert found["final"] == {"token": row["final"], "text": spell(row["final"])}
        assert found["selected"] == {"token": row["chosen"], "text": spell(row["chosen"])}


def test_windows_are_what_runs_with_that_window_would_say(recorded):
    path, sequences = recorded
    summary = summarise(Trace(path), spell)
    assert [found["window"] for found in summary["windows"]] == [2, 3, 4, 5, 6]
    for found in summary["windows"]:
        rows = list(rows_of(sequences, found["window"]))
        assert found["not_at_final"] == pytest.approx(share(rows, moved))
        assert found["replaced"] == pytest.approx(share(rows, replaced))
        assert found["mean_depth"] == pytest.approx(np.mean([row["depth"] for row in rows]))
        assert found["extra_projections"] == pytest.approx(np.mean([row["extra"] for row in rows]))


def test_kinds_and_their_most_replaced_tokens(recorded):
    path, sequences = recorded
    summary, rows = summarise(Trace(path), spell), list(rows_of(sequences, 4))
    assert tuple(summary["by_kind"]) == KINDS
    for name, part in summary["by_kind"].items():
        inside = [row for row in rows if kind(spell(row["final"])) == name]
        assert part["tokens"] == len(inside) > 0
        assert part["replaced"] == pytest.approx(share(inside, replaced))
        times = [found["replaced"] for found in part["most_replaced"]]
        assert times == sorted(times, reverse=True)
        for found in part["most_replaced"]:
            of = [row for row in inside if row["final"] == found["token"]]
            changed = [row["chosen"] for row in of if replaced(row)]
            assert (found["occurrences"], found["replaced"]) == (len(of), len(changed))
            assert found["text"] == spell(found["token"])
            assert found["mostly_by"]["times"] == max(map(changed.count, changed))
            assert changed.count(found["mostly_by"]["token"]) == found["mostly_by"]["times"]


def test_a_bin_holds_its_lower_edge(tmp_path):
    sequence = made.sequence(4)
    sequence.seen.entropies[:] = np.array([[0.5], [1.0], [2.0], [4.0]], np.float32)
    sequence.seen.entropies[:, 1] -= np.array([0.0, 1.0, 0.5, 3.0], np.float32)
    writer = TraceWriter(tmp_path / "t.parquet", made.about())
    writer.add(sequence, made.pieces(sequence))
    writer.close()
    summary = summarise(Trace(tmp_path / "t.parquet"), spell)
    assert [b["from"] for b in summary["by_final_entropy"] if b["tokens"]] == [0.5, 1.0, 2.0, 4.0]
    assert [b["from"] for b in summary["entropy"]["drops"] if b["tokens"]] == [0.3, 1.0, 3.0]


def test_a_nan_stops_the_scan_and_is_counted(tmp_path):
    sequence = made.sequence(30)
    sequence.seen.entropies[3, 1], sequence.seen.entropies[5, 0], sequence.seen.entropies[7, 1] = np.nan, np.nan, np.inf
    writer = TraceWriter(tmp_path / "t.parquet", made.about())
    writer.add(sequence, made.pieces(sequence))
    writer.close()
    summary = summarise(Trace(tmp_path / "t.parquet"), spell)
    assert summary["tokens_with_nan"] == 3
    assert pq.read_table(tmp_path / "t.parquet")["depth"].to_pylist()[3:8:2] == [0, 0, 0]
    assert {found["position"] for found in summary["typical"].values()}.isdisjoint({3, 5, 7})
    json.dumps(summary, allow_nan=False)
    assert max(mean for means in summary["entropy_by_depth"].values() for mean in means) < 10, "they count as 0"


def test_a_replaced_token_stands_for_its_own_group_alone(tmp_path):
    sequence = made.sequence(3)
    sequence.seen.entropies[:] = np.array([[3.0], [2.0], [2.2]]) - np.array([0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    sequence.seen.best[:] = np.array([[4] * 6, [4, 5, 5, 5, 5, 5], [4, 5, 5, 5, 5, 5]])
    writer = TraceWriter(tmp_path / "t.parquet", made.about())
    writer.add(sequence, made.pieces(sequence))
    writer.close()
    typical = summarise(Trace(tmp_path / "t.parquet"), spell)["typical"]
    # The last row is nearer to the mean of all three.
    assert (typical["perturbed"]["position"], typical["replaced"]["position"]) == (0, 1)


def test_a_group_without_tokens_has_no_typical_one(tmp_path):
    sequence = made.sequence(3)
    sequence.seen.entropies[:] = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32)
    writer = TraceWriter(tmp_path / "t.parquet", made.about())
    writer.add(sequence, made.pieces(sequence))
    writer.close()
    typical = summarise(Trace(tmp_path / "t.parquet"), spell)["typical"]
    assert (typical["perturbed"], typical["replaced"]) == (None, None)
    assert (typical["unperturbed"]["position"], typical["unperturbed"]["depth"]) == (0, 0)
