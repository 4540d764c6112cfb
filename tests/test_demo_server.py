"""The port that demo, examples and tests give to a server stays free until the server binds it."""

import socket
from pathlib import Path

import pytest

from demo import server

LINUX = 32768  # where its own range begins by default


def bound(port):
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))


def test_no_connection_is_given_the_port(monkeypatch):
    monkeypatch.setattr(server, "_first_given_by_the_system", lambda: LINUX)
    for _ in range(50):
        port = server.free_port()
        assert server.LOWEST_PORT <= port < LINUX
        bound(port)


def test_the_systems_range_is_read():
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert server._first_given_by_the_system() == (int(path.read_text().split()[0]) if path.exists() else LINUX)


def test_a_port_in_use_is_passed_over(monkeypatch):
    monkeypatch.setattr(server, "_first_given_by_the_system", lambda: LINUX)
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
