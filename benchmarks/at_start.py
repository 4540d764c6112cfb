"""What a benchmark changes in a worker before its model is built; vLLM imports this as its ``worker_extension_cls``.

Changed later, an engine would have to make its CUDA graphs again, and a process that has done that launches all
kernels of the forward's graph 0.4 microseconds later each (H200, driver 580): 0.2 ms a step of an 8B model.

The environment variable `benchmarks.engine.AT_START` says what: a JSON object with ``dense`` (no rounds), ``no_graphs``
(of scans), ``under`` (a share of rows; depths can be forced, see `benchmarks.forced`) and ``histogram`` (which they
follow from the start).
"""

import json
import os

from benchmarks.engine import AT_START
from confident_decoding import planner, scan


class Worker:
    """Mixed into vLLM's worker."""

    def force_depths(self, histogram):
        """From the next step on, depths follow this one of `benchmarks.forced.HISTOGRAMS`."""
        FORCED[0].choose(histogram)


FORCED = []
"""The one `benchmarks.forced.Forced` of this process, from the first decision on."""


def force_decisions(under, histogram):
    """Put `benchmarks.forced.Forced` before each decision; histogram None: nothing is forced yet."""
    from benchmarks.forced import Forced
    from confident_decoding.kernels import triton_operations

    decide = triton_operations.decide

    def forced_decide(statistics, candidates, *rest):
        if not FORCED:
            FORCED.append(Forced(statistics.device, under))
            FORCED[0].choose(histogram)
        FORCED[0](statistics, candidates)
        return decide(statistics, candidates, *rest)

    triton_operations.decide = forced_decide


def change(dense=False, no_graphs=False, under=None, histogram=None):
    """See the module."""
    if dense:
        planner.rows_per_read = lambda *args, **kwargs: None
    if no_graphs:
        scan.replayed = lambda *args: None
    if under is not None:
        force_decisions(under, histogram)


change(**json.loads(os.environ[AT_START]))
