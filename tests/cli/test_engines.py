"""Output put aside, and the reason of a failure."""

import subprocess
import sys

import pytest

from confident_decoding.cli.engines import cause_in, explain

NOISY = """
import os, sys
from confident_decoding.cli.engines import output_aside
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


LOG = """\
(EngineCore pid=7) INFO 11-30 08:13:49 [core.py:84] Initializing
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900]   File "loader.py", line 3, in load
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900] confident_decoding.config.ConfigError: it cannot start:
(EngineCore pid=7) ERROR 11-30 08:13:50 [core.py:900]   unsupported together with x.
Traceback (most recent call last):
  File "core_client.py", line 9, in __init__
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_cause_is_found_in_the_log():
    assert cause_in(LOG) == "it cannot start:   unsupported together with x."
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    assert explain(error, LOG) == "it cannot start: unsupported together with x."
    assert explain(error, "nothing here") == "Engine core initialization failed. See root cause above."


def test_an_error_that_says_it_itself_is_not_looked_up():
    assert explain(ValueError("the prompt is too long"), LOG) == "the prompt is too long."


def test_no_device():
    error = RuntimeError("Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`")
    assert "no GPU that this build supports" in explain(error, "")


def test_a_configuration_error_without_pydantics_frame():
    from pydantic import BaseModel, field_validator

    class Model(BaseModel):
        architecture: str

        @field_validator("architecture")
        @classmethod
        def known(cls, value):
            raise ValueError(f"{value} is not supported")

    with pytest.raises(ValueError) as raised:
        Model(architecture="X")
    assert explain(raised.value, "") == "X is not supported."
