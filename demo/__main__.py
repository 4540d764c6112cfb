"""``make demo``: the same four questions to a Confident Decoding server and to a standard one."""

import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from openai import OpenAI
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.checkpoint import smollm2
from demo.server import ServerError, running

QUESTIONS = [
    "What is gravity?",
    "Name three colors.",
    "How do I boil an egg?",
    "Why is the sky blue?",
]
OURS = re.compile(r"\.py:\d+\] (confident-decoding[ :].*|\[trough-decoding\].*)")
CONFIDENT = {"enable_multi_layer_entropy_selection": True, "trough_log_interval": 20}
STANDARD = {"enable_multi_layer_entropy_selection": False}
P_ZERO = {"enable_multi_layer_entropy_selection": True, "p": 0.0, "trough_log_interval": 20}


def ask(
    console: Console, name: str, model: str, config: dict[str, object], *, max_tokens: int, log: Path
) -> tuple[list[str], list[str]]:
    """Start one server, ask it everything, stop it: the answers, and the plugin's log lines."""
    start = time.monotonic()
    with console.status(f"Starting `vllm serve` ({name}) ..."):
        server = running(
            model,
            log,
            config,
            "--dtype",
            "bfloat16",
            "--enforce-eager",
            "--max-model-len",
            "2048",
            "--served-model-name",
            "smollm2",
        )
        url = server.__enter__()
    try:
        console.print(f"{name}: ready after {time.monotonic() - start:.0f} s at {url}")
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        answers = []
        for question in QUESTIONS:
            with console.status(f"{name}: {question}"):
                reply = client.chat.completions.create(
                    model="smollm2",
                    messages=[{"role": "user", "content": question}],
                    temperature=0,
                    max_tokens=max_tokens,
                )
            answers.append((reply.choices[0].message.content or "").strip())
    finally:
        server.__exit__(None, None, None)
    return answers, OURS.findall(log.read_text())


def main() -> int:
    """Run the demonstration; 1 if a server failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--p0", action="store_true", help="compare with p=0 instead of a standard server")
    args = parser.parse_args()
    # So that `finally` stops the servers, also where a shell started this with SIGINT ignored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    model = str(smollm2())
    other = ("p=0", P_ZERO) if args.p0 else ("standard", STANDARD)
    folder = Path(tempfile.mkdtemp(prefix="confident-decoding-demo-"))
    try:
        confident, lines = ask(
            console, "confident", model, CONFIDENT, max_tokens=args.max_tokens, log=folder / "confident.log"
        )
        standard, _ = ask(console, other[0], model, other[1], max_tokens=args.max_tokens, log=folder / "standard.log")
    except ServerError as error:
        console.print(Text(str(error), style="red"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    table = Table("question", other[0], "confident (trough, 10 candidates)", show_lines=True)
    for row in zip(QUESTIONS, standard, confident, strict=True):
        table.add_row(*map(Text, row))  # answers may hold what rich takes for markup
    console.print(table)
    console.print("Log lines of the confident server:")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"\nFull logs: {folder}\nA 135M model shows the mechanism, not the gain: the paper's gains are for models of "
        "20B parameters and more, and on this one the text often gets worse.",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
