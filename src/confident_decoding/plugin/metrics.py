"""Prometheus metrics on the server's own ``/metrics``.

The worker that counts writes prometheus_client's multi-process files, which is how vLLM itself brings the metrics of
several API processes together. Where vLLM has such a folder (``PROMETHEUS_MULTIPROC_DIR``), the files go there, and
every API process serves their sum. Where it has none, the front-end process makes one, tells the workers in their
configuration, and serves it beside vLLM's own metrics.

Nothing here touches the device: a GPU writes its counters into pinned memory (`kernels.twins.count`), a thread copies
that to the files.
"""

import atexit
import logging
import os
import shutil
import tempfile
import threading
import uuid
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from confident_decoding.config import SelectionPlan
from confident_decoding.stats import Totals

logger = logging.getLogger("vllm.confident_decoding")
PREFIX = "confident_decoding_"
PERIOD = 1.0
"""Seconds between two looks at the counters."""
ROWS = ("sampled", "prompt")
"""The label ``rows`` of the two rows of the counters."""
COUNTERS = {
    "tokens": "Rows that went through the output head.",
    "tokens_not_final": "Rows that took another layer than the final one.",
    "tokens_argmax_changed": "Rows whose most likely token is another than at the final layer.",
    "tokens_fell_back": "Rows that were kept back by a candidate layer without a finite distribution.",
}
DEPTH = "depth"
DEPTH_HELP = "Layers between the final one and the one that was taken."
_FOLDER = "confident_decoding_metrics"
_VLLMS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def offer(vllm_config: Any) -> None:
    """In the front-end process, before the engine starts: a folder for the files, served by this process.

    Args:
        vllm_config: Told where the folder is. An attribute of our own, because ``additional_config`` is part of the
            hashes that vLLM tells configurations apart by.
    """
    setattr(vllm_config, _FOLDER, os.environ.get(_VLLMS_FOLDER) or _served_folder())


@cache
def _served_folder() -> str:
    from prometheus_client import REGISTRY
    from prometheus_client.multiprocess import MultiProcessCollector

    folder = tempfile.mkdtemp(prefix="confident-decoding-metrics-")
    atexit.register(_remove, folder, os.getpid())
    MultiProcessCollector(REGISTRY, path=folder)  # type: ignore[no-untyped-call]
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


def publish(vllm_config: Any, plan: SelectionPlan, counters: Tensor, owner: object) -> Tensor | None:
    """In the worker that counts: begin to publish, until ``owner`` is gone.

    Args:
        vllm_config: This engine's.
        plan: What is selected.
        counters: Of `stats.new_counters`.
        owner: The model, or a part of it.

    Returns:
        What `kernels.twins.count` is to mirror the counters in; None, after a warning, if there is no folder to
        publish in.
    """
    folder = getattr(vllm_config, _FOLDER, None) or os.environ.get(_VLLMS_FOLDER)
    if folder is None or not Path(folder).is_dir():
        logger.warning(
            "confident-decoding: trough_metrics is on, but no front-end process of this machine offers a folder to "
            "publish in, so this engine exports no metrics. (A worker must run on the machine of its API server; with "
            "several of those under Ray, set VLLM_RAY_EXTRA_ENV_VARS_TO_COPY=%s.)",
            _VLLMS_FOLDER,
        )
        return None
    mirror = torch.zeros(counters.shape, dtype=counters.dtype, pin_memory=counters.is_cuda)
    labels = {
        "model_name": str(vllm_config.model_config.served_model_name),
        "engine": str(vllm_config.parallel_config.data_parallel_index),
    }
    publisher = Publisher(Path(folder), labels, plan, mirror)
    weakref.finalize(owner, publisher.close)
    publisher.start()
    return mirror


class Publisher:
    """Files of one engine, brought up to date once a `PERIOD` by a thread.

    Args:
        folder: Of the files. Each publisher adds files of its own, so that what an engine has counted stays
            when it is started anew, and sums never fall.
        labels: Of all series, beside ``rows``.
        plan: What is selected. With a fixed layer there are no logits of the final one to compare with.
        mirror: ``[2, cells]`` int64 (`stats.new_counters`), written by somebody else at any time.
    """

    def __init__(self, folder: Path, labels: dict[str, str], plan: SelectionPlan, mirror: Tensor) -> None:
        self._labels, self._mirror = labels, mirror
        self._compares = plan.fixed_depth is None
        self._published: list[list[int]] | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._files = {kind: _NewFile(folder, kind) for kind in ("counter", "histogram")}
        self.publish()
        for file in self._files.values():
            file.show()

    def start(self) -> None:
        """Start the thread; it ends with the process, or with `close`."""
        threading.Thread(target=self._run, name="confident-decoding-metrics", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            self.publish()

    def publish(self) -> None:
        """Write what has changed since the last time."""
        with self._lock:
            values = self._mirror.tolist()
            if self._ended.is_set() or values == self._published:
                return
            self._published = values
            for rows, counts in zip(ROWS, values, strict=True):
                self._write(rows, Totals.of(counts))

    def close(self) -> None:
        """Publish for the last time, and end the thread."""
        self.publish()
        with self._lock:
            if not self._ended.is_set():
                self._ended.set()
                for file in self._files.values():
                    file.close()

    def _write(self, rows: str, totals: Totals) -> None:
        labels = {**self._labels, "rows": rows}
        values = {"tokens": totals.tokens, "tokens_not_final": totals.tokens - totals.kept_at_final}
        if self._compares:
            values["tokens_argmax_changed"] = totals.changed
        values["tokens_fell_back"] = totals.fell_back
        for name, value in values.items():
            self._files["counter"].write(PREFIX + name, "_total", labels, COUNTERS[name], value)
        # Each bucket by itself: whoever reads the files adds them up.
        for depth, count in enumerate(totals.by_depth):
            bucket = {**labels, "le": str(float(depth))}
            self._files["histogram"].write(PREFIX + DEPTH, "_bucket", bucket, DEPTH_HELP, count)
        self._files["histogram"].write(PREFIX + DEPTH, "_bucket", {**labels, "le": "+Inf"}, DEPTH_HELP, 0)
        self._files["histogram"].write(PREFIX + DEPTH, "_sum", labels, DEPTH_HELP, totals.depth_sum)


class _NewFile:
    """A file of prometheus_client's; readers see it once it holds all series."""

    def __init__(self, folder: Path, kind: str) -> None:
        from prometheus_client.mmap_dict import MmapedDict

        self._name = folder / f"{kind}_confident-decoding-{uuid.uuid4().hex}.db"
        self._values = MmapedDict(str(self._name.with_suffix(".new")))  # type: ignore[no-untyped-call]

    def write(self, metric: str, suffix: str, labels: dict[str, str], description: str, value: float) -> None:
        from prometheus_client.mmap_dict import mmap_key

        key = mmap_key(metric, metric + suffix, list(labels), list(labels.values()), description)
        self._values.write_value(key, float(value), 0.0)  # type: ignore[no-untyped-call]

    def show(self) -> None:
        self._name.with_suffix(".new").rename(self._name)

    def close(self) -> None:
        self._values.close()  # type: ignore[no-untyped-call]
