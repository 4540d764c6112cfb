"""The trace: one row a token, in a Parquet file that is written and read piece by piece."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from confident_decoding.analysis.recorder import TOPS
from confident_decoding.analysis.recording import Sequence
from confident_decoding.analysis.selections import troughs

METADATA = b"confident_decoding"
ROW_GROUP = 1 << 14
"""Rows that are held before they are written."""


@dataclass(frozen=True)
class About:
    """What a trace is of; kept in the file's metadata as JSON, under ``confident_decoding``.

    Attributes:
        model: Its name.
        num_layers: N.
        candidates: n, depths ``0 .. n-1`` that were recorded.
        window: K, candidate layers of the selection in the columns ``depth``, ``selected_token``, ``replaced``.
        trajectory: ``"confident"`` or ``"standard"`` answers, or ``"text"``.
        dtype: Of the model.
        versions: Of this package and of vLLM.
    """

    model: str
    num_layers: int
    candidates: int
    window: int
    trajectory: str
    dtype: str
    versions: dict[str, str]


def schema(about: About) -> pa.Schema:
    """The columns (docs/analysis.md describes them)."""
    n = about.candidates
    fields = [
        ("sequence", pa.int32()),
        ("position", pa.int32()),
        ("length", pa.int32()),
        ("token", pa.int32()),
        ("text", pa.string()),
        ("depth", pa.int16()),
        ("final_token", pa.int32()),
        ("selected_token", pa.int32()),
        ("replaced", pa.bool_()),
        ("entropy", pa.list_(pa.float32(), n)),
        ("best_token", pa.list_(pa.int32(), n)),
        ("top_tokens", pa.list_(pa.int32())),
        ("top_probabilities", pa.list_(pa.float32())),
    ]
    return pa.schema(
        [pa.field(name, kind, nullable=name.startswith("top_")) for name, kind in fields],
        metadata={METADATA: json.dumps(asdict(about)).encode()},
    )


class TraceWriter:
    """Writes sequences; at most `ROW_GROUP` rows and one sequence are held in memory.

    Args:
        path: The file.
        about: What it is of.
    """

    def __init__(self, path: Path, about: About) -> None:
        self._about, self._schema = about, schema(about)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._pending: list[pa.RecordBatch] = []
        self._sequences = 0

    def add(self, sequence: Sequence, pieces: list[str]) -> None:
        """Append one sequence.

        Args:
            sequence: What was recorded.
            pieces: Its T tokens as text.

        Raises:
            OSError: The file cannot be written.
        """
        seen, rows = sequence.seen, len(sequence.tokens)
        depths = np.minimum(troughs(seen.entropies), self._about.window - 1)
        selected = seen.best[np.arange(rows), depths]
        columns = [
            pa.array(np.full(rows, self._sequences, np.int32)),
            pa.array(np.arange(rows, dtype=np.int32)),
            pa.array(np.full(rows, rows, np.int32)),
            pa.array(sequence.tokens),
            pa.array(pieces, pa.string()),
            pa.array(depths.astype(np.int16)),
            pa.array(seen.best[:, 0]),
            pa.array(selected),
            pa.array(selected != seen.best[:, 0]),
            _fixed(seen.entropies),
            _fixed(seen.best),
            _first(seen.top_tokens, rows),
            _first(seen.top_probabilities, rows),
        ]
        self._pending.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._sequences += 1
        if sum(batch.num_rows for batch in self._pending) >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the file's end.

        Raises:
            OSError: The file cannot be written.
        """
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=ROW_GROUP)
            self._pending = []


@dataclass(frozen=True)
class Block:
    """Some rows of a trace as arrays; names as in the file, n depths.

    Attributes:
        sequence: ``[T]``.
        position: ``[T]``.
        length: ``[T]``.
        entropy: ``[T, n]`` nats.
        best_token: ``[T, n]``.
    """

    sequence: NDArray[np.int32]
    position: NDArray[np.int32]
    length: NDArray[np.int32]
    entropy: NDArray[np.float32]
    best_token: NDArray[np.int32]


@dataclass(frozen=True)
class Token:
    """One row of a trace with its best tokens.

    Attributes:
        sequence: Which.
        text: The token.
        depth: Selected.
        final_token: Best at the final layer.
        selected_token: Best at the selected layer.
        entropy: ``[n]`` nats.
        top_tokens: ``[n, 5]``.
        top_probabilities: ``[n, 5]``.
    """

    sequence: int
    text: str
    depth: int
    final_token: int
    selected_token: int
    entropy: NDArray[np.float32]
    top_tokens: NDArray[np.int32]
    top_probabilities: NDArray[np.float32]


class Trace:
    """Reads a trace.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self.about = About(**json.loads(self._file.schema_arrow.metadata[METADATA]))
        self.rows: int = self._file.metadata.num_rows

    def blocks(self, rows: int = ROW_GROUP) -> Iterator[Block]:
        """All of it, at most ``rows`` rows at a time."""
        names = list(Block.__dataclass_fields__)
        for batch in self._file.iter_batches(rows, columns=names):
            yield Block(*(_array(batch.column(name)) for name in names))

    def tokens(self) -> Iterator[Token]:
        """The rows whose best tokens were kept, in order."""
        names = list(Token.__dataclass_fields__)
        for batch in self._file.iter_batches(1 << 10, columns=names):
            for row in batch.to_pylist():
                if row["top_tokens"] is None:
                    return
                row["entropy"] = np.array(row["entropy"], np.float32)
                row["top_tokens"] = np.array(row["top_tokens"], np.int32).reshape(-1, TOPS)
                row["top_probabilities"] = np.array(row["top_probabilities"], np.float32).reshape(-1, TOPS)
                yield Token(**row)


def _fixed(values: NDArray[Any]) -> pa.Array:
    """``[T, n]`` as lists of n."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _first(values: NDArray[Any], rows: int) -> pa.Array:
    """``[T', n, 5]`` as lists, and nulls from there to ``rows``."""
    kept, size = len(values), int(np.prod(values.shape[1:]))
    ends = np.minimum(np.arange(rows + 1), kept) * size
    missing = np.append(np.arange(rows) >= kept, False)
    offsets = pa.array(ends.astype(np.int32), mask=missing)
    return pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))


def _array(column: pa.Array) -> NDArray[Any]:
    nested = pa.types.is_fixed_size_list(column.type)
    values: NDArray[Any] = (column.flatten() if nested else column).to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1) if nested else values
