"""``make serve``: a server with Confident Decoding on, in the foreground, until Ctrl-C."""

import argparse
import os

from demo.checkpoint import smollm2
from demo.server import command, environment

DEFAULTS = {"enable_multi_layer_entropy_selection": True, "trough_log_interval": 200}


def main() -> None:
    """Replace this process by ``vllm serve``, so that signals reach it directly."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other arguments go to `vllm serve`.")
    parser.add_argument("--model", help="checkpoint folder or name; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--port", type=int, default=8000)
    args, rest = parser.parse_known_args()
    options = (
        rest if args.model else ["--served-model-name", "smollm2", "--dtype", "bfloat16", "--enforce-eager", *rest]
    )
    model = args.model or str(smollm2())
    config = None if any(option.startswith("--additional-config") for option in rest) else DEFAULTS
    line = command(model, args.port, config, *options)
    env = environment()
    if args.model and "HF_HUB_OFFLINE" not in os.environ:
        env.pop("HF_HUB_OFFLINE")  # the user's own model may have to be downloaded
    print("$", " ".join(line), flush=True)
    os.execve(line[0], line, env)


if __name__ == "__main__":
    main()
