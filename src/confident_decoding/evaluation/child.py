"""The child process: ``python -m confident_decoding.evaluation.child FD`` with a job on standard input.

It reports to the file descriptor FD, one JSON object a line; standard output and error are for others' noise.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from typing import Any

from confident_decoding.engines.options import WrongUseError, text_of


def main() -> None:
    """Do one job."""
    _end_with_parent()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "w", encoding="utf-8") as pipe:

        def send(event: str, **values: Any) -> None:
            pipe.write(json.dumps({"event": event, **values}) + "\n")
            pipe.flush()

        job = json.load(sys.stdin)
        try:
            if job.pop("work") == "describe":
                from confident_decoding.evaluation.describe import describe

                describe(send, **job)
            else:
                from confident_decoding.evaluation.answering import answer

                answer(send, **job)
        except WrongUseError as error:
            send("error", message=str(error), status=2)
        except Exception as error:
            traceback.print_exc()
            send("error", message=text_of(error), status=1)
        else:
            send("end")


def _end_with_parent() -> None:
    """A command that is killed leaves no engine behind that holds a GPU's memory."""
    if sys.platform == "linux":
        set_signal_at_parents_death = 1  # prctl(2)
        ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGTERM)


if __name__ == "__main__":
    main()
