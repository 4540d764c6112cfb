"""The port that demo, examples and tests give to a server stays free until the server binds it."""

import socket
from pathlib import Path

import pytest

from demo import server

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def bound(port):
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))


def test_no_connection_is_given_the_port():
    given_by_the_system = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32768
    for _ in range(50):
        port = server.free_port()
        assert server.LOWEST_PORT <= port < given_by_the_system
        bound(port)


def test_a_port_in_use_is_passed_over(monkeypatch):
    first, second = server.free_port(), server.free_port()
    with socket.socket() as s:
        s.bind(("127.0.0.1", first))
        draws = iter([first, first, second])
        monkeypatch.setattr(server.random.SystemRandom, "randrange", lambda *_: next(draws))
        assert server.free_port() == second


@pytest.mark.parametrize("lowest", [1024, server.LOWEST_PORT])
def test_a_system_that_gives_out_every_port(lowest, monkeypatch):
    monkeypatch.setattr(server, "_first_given_by_the_system", lambda: lowest)
    bound(server.free_port())
