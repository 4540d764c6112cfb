"""A real ``vllm serve`` on a free loopback port, stopped for certain."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from confident_decoding.engines.process import end_group

LOWEST_PORT = 20000  # above the ports that programs are known to use


class ServerError(RuntimeError):
    """The server ended before it answered; the message holds the end of its log."""


def free_port() -> int:
    """A loopback port that is free now, and that nobody is given by chance before a server binds it.

    A server binds its port only after seconds of imports. The system gives the ports of its own range to every
    connection meanwhile, so the port is drawn from below that range.
    """
    below = _first_given_by_the_system()
    if below <= LOWEST_PORT:
        return _bindable(0)
    while True:
        with contextlib.suppress(OSError):
            return _bindable(random.SystemRandom().randrange(LOWEST_PORT, below))


def _first_given_by_the_system() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32768  # Linux's default, below that of every other system


def _bindable(port: int) -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))
        return int(s.getsockname()[1])


def command(model: str, port: int, additional_config: dict[str, object] | None, *options: str) -> list[str]:
    """The command line, as a user would type it (``vllm`` of this environment)."""
    line = [str(Path(sys.executable).with_name("vllm")), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    if additional_config is not None:
        line += ["--additional-config", json.dumps(additional_config)]
    return [*line, *options]


def environment() -> dict[str, str]:
    """Settings that a small machine without a network needs; the user's own win."""
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return {**defaults, **os.environ}


@contextlib.contextmanager
def running(
    model: str,
    log: Path,
    additional_config: dict[str, object] | None = None,
    *options: str,
    timeout: float = 600,
    env: dict[str, str] | None = None,
) -> Iterator[str]:
    """Start a server, wait until it is healthy, yield its base URL, stop all of its processes.

    Args:
        model: Checkpoint folder or name.
        log: File that its output goes to.
        additional_config: The documented keys; None for an untouched command line.
        *options: Further arguments of ``vllm serve``.
        timeout: Seconds to wait for health.
        env: More environment variables.

    Raises:
        ServerError: It ended or was not healthy in time.
    """
    port = free_port()
    with started(command(model, port, additional_config, *options), port, log, timeout=timeout, env=env) as url:
        yield url


@contextlib.contextmanager
def started(
    line: list[str], port: int, log: Path, timeout: float = 600, env: dict[str, str] | None = None
) -> Iterator[str]:
    """The same for a command line that starts a server on ``port``."""
    with log.open("w") as out:
        process = subprocess.Popen(
            line,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**environment(), **(env or {})},
            start_new_session=True,
        )
    try:
        _wait_healthy(process, port, log, timeout)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


def _wait_healthy(process: "subprocess.Popen[bytes]", port: int, log: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(
                f"vllm serve ended with code {process.returncode}. End of {log}:\n{log.read_text()[-3000:]}"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise ServerError(f"vllm serve was not ready after {timeout:.0f} s. End of {log}:\n{log.read_text()[-3000:]}")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End the server's whole process group: politely, then not."""
    end_group(process, patience=15)
