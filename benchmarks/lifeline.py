"""A process of its own session that ends, with all that it started, when its parent has gone."""

import os
import signal
import threading
import time


def end_with_parent():
    """Look once a second; the caller leads its process group (``start_new_session``)."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
