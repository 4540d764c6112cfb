"""Reading our series from a server's ``/metrics``, as Prometheus would parse them."""

import http.client
import time
import urllib.parse
import urllib.request

import psutil
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "confident_decoding_"


def read(text):
    """``{(sample, rows, engine): value}`` of our series in an exposition, buckets with their bound behind."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name.startswith(PREFIX) else ():
            assert sample.labels["model_name"] == "m"
            key = [sample.name.removeprefix(PREFIX), sample.labels["rows"], sample.labels["engine"]]
            key += [float(sample.labels["le"])] if "le" in sample.labels else []
            assert tuple(key) not in found, "each series once"
            found[tuple(key)] = sample.value
    return found


def scrape(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        return read(reply.read().decode())


def scrape_and_pid(url):
    """A scrape on a connection of its own, and the process that has answered it."""
    server = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=60)
    connection.request("GET", "/metrics")
    reply = connection.getresponse()
    ours = connection.sock.getsockname()[1] if connection.sock else None
    pids = [
        c.pid for c in psutil.net_connections("tcp") if c.raddr and (c.laddr.port, c.raddr.port) == (server.port, ours)
    ]
    found = read(reply.read().decode())
    connection.close()
    (pid,) = pids
    return found, pid


def settled(url, tokens, engine="0"):
    """A scrape with so many sampled tokens: a worker publishes once a second."""
    deadline = time.monotonic() + 60
    while (found := scrape(url))["tokens_total", "sampled", engine] != tokens and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def by_depth(metrics, rows="sampled", engine="0"):
    """Tokens at each depth, from cumulative buckets."""
    bounds = sorted(key[3] for key in metrics if key[:3] == ("depth_bucket", rows, engine))
    counts = [metrics["depth_bucket", rows, engine, bound] for bound in bounds]
    return [int(b - a) for a, b in zip([0, *counts], counts, strict=False)]
