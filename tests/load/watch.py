"""Resident memory of a server's processes while it works."""

import statistics

import psutil

MIB = 1 << 20
SAMPLES = 200


class Memory:
    """Sampled as requests end, so that what is compared does not depend on time.

    Attributes:
        names: Of the processes, by id.
        samples: ``{pid: [bytes]}``, about `SAMPLES` each.
    """

    def __init__(self, pids, count):
        self._processes = [psutil.Process(pid) for pid in pids]
        self._every = max(1, count // SAMPLES)
        self.names = {p.pid: f"{p.name()} {p.pid}" for p in self._processes}
        self.samples = {p.pid: [] for p in self._processes}

    def told(self, over):
        """So many requests are over."""
        if over % self._every == 0:
            for process in self._processes:
                self.samples[process.pid].append(process.memory_info().rss)

    def by_tenths(self):
        """``{name: [MiB]}``: the median of each tenth of the run."""
        return {self.names[pid]: [_median(sizes, tenth, 10) for tenth in range(10)] for pid, sizes in self._sampled()}

    def growth(self):
        """``{name: MiB}``: from the median of the third quarter to that of the last."""
        return {self.names[pid]: _median(sizes, 3, 4) - _median(sizes, 2, 4) for pid, sizes in self._sampled()}

    def _sampled(self):
        return self.samples.items()


def _median(sizes, part, parts):
    count = len(sizes)
    return round(statistics.median(sizes[part * count // parts : (part + 1) * count // parts]) / MIB, 1)
