"""What the Dockerfile does, done without a container engine: its files alone make a wheel, which vLLM would load."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT
from docs.blocks import blocks

LINES = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
STEPS = [tuple(line.split(None, 1)) for line in LINES if line.strip()]
COMMANDS = [
    line
    for block in blocks()
    if block.language == "bash"
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.startswith("docker ")
]


def of(instruction):
    """What follows each such instruction, in order."""
    return [rest for name, rest in STEPS if name == instruction]


@pytest.fixture
def python(tmp_path):
    """An environment beside this one's packages, as the image's Python has vLLM's."""
    folder = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python3"


def test_the_steps_install_a_plugin_that_loads(python, tmp_path):
    """From what `.dockerignore` lets through."""
    first, *others = (ROOT / ".dockerignore").read_text().splitlines()
    assert first == "*", "everything is left out but what follows"
    kept = [line.removeprefix("!") for line in others if line.startswith("!")]
    context, image = tmp_path / "context", tmp_path / "root"
    for name in kept:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        context.mkdir(exist_ok=True)
        copy(ROOT / name, context / name)
    for copied in of("COPY"):
        *sources, target = copied.split()
        place = image / target.lstrip("/")
        for source in sources:
            if (context / source).is_dir():
                shutil.copytree(context / source, place)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(context / source, place)
    (run,) = of("RUN")
    assert "/tmp/confident-decoding" in run
    # The build's tools are beside it as well; pip would fetch them.
    command = run.replace("/tmp/", f"{image}/tmp/").replace("pip install", "pip install --no-build-isolation")
    command = command.replace("python3", str(python))
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert not (image / "tmp/confident-decoding").exists()
    where = [str(python), "-c", "import confident_decoding; print(confident_decoding.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(tmp_path / "image")


def test_the_commands_are_those_that_the_dockerfile_is_made_for():
    """``docker run`` ends in what follows ``vllm serve``."""
    build, run = COMMANDS
    assert build.startswith("docker build ")
    arguments = re.findall(r"--build-arg (\w+)=(\S+)", build)
    assert [f"{name}={value}" for name, value in arguments] == of("ARG")
    assert of("FROM") == [f"vllm/vllm-openai:v${{{arguments[0][0]}}}"]
    assert json.loads(of("ENTRYPOINT")[0]) == ["vllm", "serve"]
    tag = re.search(r"-t (\S+)", build)[1]
    served = run.split(f" {tag} ")[1]
    shown = [line for block in blocks() if block.language == "bash" for line in block.text.splitlines()]
    assert any(line.startswith("vllm serve ") and line.split("vllm serve ")[1] == served for line in shown)
