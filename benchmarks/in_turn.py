"""``vllm`` with an offline engine that waits for its turn, so that several start at once and are measured one by one.

python -m benchmarks.in_turn FOLDER bench latency ...

The file FOLDER/ready says that the engine has started; it goes on when there is a file FOLDER/turn.
"""

import sys
import time
from pathlib import Path

from benchmarks.lifeline import end_with_parent


def main():
    folder = Path(sys.argv.pop(1))
    end_with_parent()
    from vllm import LLM
    from vllm.entrypoints.cli.main import main as vllm

    start = LLM.from_engine_args

    def started(engine_args):
        engine = start(engine_args)
        (folder / "ready").touch()
        while not (folder / "turn").exists():
            time.sleep(0.05)
        return engine

    LLM.from_engine_args = started
    vllm()


if __name__ == "__main__":
    main()
