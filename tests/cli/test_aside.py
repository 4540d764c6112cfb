"""Output put aside, and the reason of a failure."""

import subprocess
import sys

import pytest

NOISY = """
import os, sys
from confident_decoding.cli.aside import output_aside
from confident_decoding.engines.options import WrongUseError
with output_aside(verbose={verbose}) as terminal:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.system("echo from a child")
    terminal.print("progress")
    {then}
print("result")
"""


def run(verbose=False, then="pass"):
    code = NOISY.format(verbose=verbose, then=then).replace("with output", "import typer\nwith output", 1)
    code = "import typer\ntry:\n" + "".join(f"    {line}\n" for line in code.splitlines())
    code += "except typer.Exit as ended:\n    raise SystemExit(ended.exit_code)\n"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_what_is_printed_goes_aside():
    done = run()
    assert (done.stdout, done.stderr, done.returncode) == ("result\n", "progress\n", 0)


def test_verbose_shows_it_beside_the_result():
    done = run(verbose=True)
    assert done.stdout == "result\n"
    assert sorted(done.stderr.split("\n")) == ["", "from a child", "progress", "to stderr", "to stdout"]


@pytest.mark.parametrize(
    ("then", "status", "says"),
    [
        ("raise ValueError('too\\n  long')", 1, "error: too long. Run it again with --verbose"),
        ("raise WrongUseError('no such option.')", 2, "error: no such option.\n"),
        ("raise KeyError", 1, "error: KeyError."),
        ("{}['layers']", 1, "error: KeyError: 'layers'."),
        (
            "print('x.MemoryError: 3 GiB short'); raise RuntimeError('initialization failed. See root cause above.')",
            1,
            "error: 3 GiB short.",
        ),
    ],
)
def test_a_failure_is_one_message(then, status, says):
    done = run(then=then)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.startswith("progress\n" + says)
    assert done.stderr.count("\n") == 2


def test_a_signal_to_end_is_as_ctrl_c():
    """What is half written goes, and so do processes that were started."""
    end = "try:\n    os.kill(os.getpid(), number)\n    time.sleep(9)\nexcept KeyboardInterrupt:\n    print('cleaned')"
    for number in ("SIGTERM", "SIGHUP"):
        code = "import os, signal, time\nfrom confident_decoding.cli.aside import end_politely\n"
        code += f"number = signal.{number}\n"
        code += f"signal.signal(number, signal.SIG_DFL)\nend_politely()\n{end}"  # who runs the tests may ignore it
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "cleaned\n"


def test_a_command_that_outlives_its_terminal_on_purpose_goes_on():
    """Under nohup."""
    code = "import os, signal\nfrom confident_decoding.cli.aside import end_politely\n"
    code += (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nend_politely()\nos.kill(os.getpid(), signal.SIGHUP)\nprint('on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "on\n"
