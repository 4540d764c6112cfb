"""``python -m analysis.long_trace TOKENS FOLDER``: a trace, its figures and its page; prints the peak memory, MiB."""

import dataclasses
import resource
import sys
from pathlib import Path

import numpy as np

from analysis import made
from confident_decoding.analysis.page import write_page
from confident_decoding.analysis.summary import summarise
from confident_decoding.analysis.trace import Trace, TraceWriter

PIECE, TOPS = 2000, 10_000


def main():
    tokens, folder = int(sys.argv[1]), Path(sys.argv[2])
    piece = made.sequence(PIECE, 20, seed=0)
    bare = dataclasses.replace(
        piece,
        seen=dataclasses.replace(
            piece.seen,
            top_tokens=piece.seen.top_tokens[:0],
            top_probabilities=piece.seen.top_probabilities[:0],
        ),
    )
    writer = TraceWriter(folder / "trace.parquet", made.about(20, 10, num_layers=30))
    for number in range(tokens // PIECE):
        writer.add(piece if number < TOPS // PIECE else bare, ["word "] * PIECE)
    writer.close()
    trace = Trace(folder / "trace.parquet")
    assert trace.rows == tokens
    summary = summarise(trace, str)
    assert summary["tokens"] == tokens
    assert np.sum(summary["depths"]) == tokens
    write_page(folder / "report.html", summary, trace, {}, str)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    main()
