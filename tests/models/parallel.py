"""`prove` for many tags in several processes at a time."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from models.checkpoints import CHECKPOINTS


def shares(tags, jobs):
    """Lists of tags that can share a process: at most ``jobs`` at a time, one environment each."""
    plain_tags = [tag for tag in tags if not CHECKPOINTS[tag].env]
    special = [[tag] for tag in tags if CHECKPOINTS[tag].env]
    return [share for share in (plain_tags[i::jobs] for i in range(jobs)) if share] + special


def run_parallel(args, jobs):
    """The same command for each share of the tags, with a log beside the results."""

    def run(numbered):
        number, share = numbered
        env = {**os.environ, **CHECKPOINTS[share[0]].env}
        options = [*(["--dtype", args.dtype] if args.dtype else []), *(["--compiled"] if args.compiled else [])]
        options += ["--images"] if args.images else []
        options += ["--isolate"] if args.isolate else []
        options += [word for option in args.option for word in ("--option", option)]
        log = args.out.with_suffix(f".{number}.log")
        with log.open("w") as output:
            command = [sys.executable, "-m", "models.prove", str(args.out), *share, *options]
            subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, enumerate(shares(args.tags, jobs))))
