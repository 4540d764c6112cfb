"""Runs `confident-decoding` commands one after another in a process of its own: engines are heavy to start.

Reads a list of jobs (JSON), ``{"argv": [...], "no_device": bool, "largest_file": bytes}``; writes the status and output
of each.
"""

import contextlib
import gc
import io
import json
import resource
import signal
import sys
import tempfile
from pathlib import Path


@contextlib.contextmanager
def limited(largest_file):
    """Within, no file grows beyond that many bytes: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def no_device(wanted):
    """Within, vLLM has found nothing to run on, as its GPU build does on a machine without one."""
    if not wanted:
        yield
        return
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    before = vllm.platforms.current_platform
    vllm.platforms.current_platform = vllm.platforms._current_platform = UnspecifiedPlatform()
    try:
        yield
    finally:
        vllm.platforms.current_platform = vllm.platforms._current_platform = before


def run(job):
    from confident_decoding.cli.app import app

    with tempfile.TemporaryFile(mode="w+") as errors, limited(job.get("largest_file")), no_device(job.get("no_device")):
        output, status = io.StringIO(), None
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                app(job["argv"])
            except SystemExit as end:
                status = end.code
        errors.seek(0)
        result = {"status": status, "output": output.getvalue(), "errors": errors.read()}
    if "vllm.distributed" in sys.modules:
        from vllm.distributed import cleanup_dist_env_and_memory

        gc.collect()
        cleanup_dist_env_and_memory()
    return result


if __name__ == "__main__":
    jobs, results = map(Path, sys.argv[1:])
    results.write_text(json.dumps([run(job) for job in json.loads(jobs.read_text())]))
