"""The child process (`engines.process`): told one job, it reports events; its output is for others' noise."""

import traceback
from typing import Any

from confident_decoding.engines.options import WrongUseError, text_of
from confident_decoding.engines.process import Parent


def main() -> None:
    """Do one job."""
    parent = Parent()

    def send(event: str, **values: Any) -> None:
        parent.say({"event": event, **values})

    job = next(parent.messages())
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


if __name__ == "__main__":
    main()
