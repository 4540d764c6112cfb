"""A whole evaluation: describe, skip what is finished, let engines answer, compare."""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confident_decoding.evaluation.events import events
from confident_decoding.evaluation.folder import RunFolder, Write
from confident_decoding.evaluation.report import build
from confident_decoding.evaluation.settings import Setting, settings_for
from confident_decoding.evaluation.sharing import EngineStart, Unit, arrange

SCHEMA = 1


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        model: Folder or name.
        tasks: Names, patterns or YAML files.
        settings: As the command line gives them; standard decoding need not be among them.
        output: Folder of the run.
        include_path: Folders with task files of the user's own.
        limit: Questions of each task, None for all.
        num_fewshot: Examples in each prompt, None for the task's own number.
        apply_chat_template: Put prompts into the model's chat template.
        system_instruction: In front of each prompt, or None.
        gen_kwargs: Generation options that replace the tasks' own, or None.
        vllm: Options of ``vllm serve``, quoted as in a shell.
        model_args: Arguments of lm-eval's model class that are not vLLM's.
        seed: Of everything that draws.
        own_engines: An engine for each setting.
        allow_unsafe_code: Tasks may run what the model writes.
        verbose: Let the engines' output through.
    """

    model: str
    tasks: Sequence[str]
    settings: Sequence[str]
    output: Path
    include_path: Sequence[str] = ()
    limit: int | None = None
    num_fewshot: int | None = None
    apply_chat_template: bool = False
    system_instruction: str | None = None
    gen_kwargs: dict[str, Any] | None = None
    vllm: str = ""
    model_args: dict[str, Any] = field(default_factory=dict)
    seed: int = 1234
    own_engines: bool = False
    allow_unsafe_code: bool = False
    verbose: bool = False


class Evaluation:
    """One run of the command.

    Args:
        request: What the user asked for.
        write: How files are written.

    Raises:
        ChildError: The model or a task cannot be used.
        FolderError: The output folder cannot.
        SettingError: A setting cannot.
    """

    def __init__(self, request: Request, write: Write) -> None:
        self._request = request
        self._facts = self._describe()
        layers, tasks = self._facts["layers"], self._facts["tasks"]
        self.settings, self.same_as_standard = settings_for(request.settings, layers)
        self._folder = RunFolder(request.output, self._run(), write)
        types = {name: task["output_type"] for name, task in tasks.items()}
        self.units: list[Unit] = []
        self._results: dict[tuple[str, str], dict[str, Any]] = {}
        self.engines: list[EngineStart] = []
        self._by_name = {setting.name: setting for setting in self.settings}
        for engine in arrange(self.settings, types, layers, request.own_engines):
            self.units += engine.units
            for unit in engine.units:
                found = self._folder.load(unit, self._depends_on(unit))
                if found is not None:
                    self._results[unit.task, unit.setting] = found
            left = [unit for unit in engine.units if (unit.task, unit.setting) not in self._results]
            if left:
                self.engines.append(EngineStart(engine.additional_config, left))

    @property
    def finished(self) -> int:
        """How many units have a result."""
        return len(self._results)

    def answer(self) -> Generator[dict[str, Any], None, None]:
        """Run the engines that are needed, keep each unit's result; yields what happens.

        Yields:
            Events: ``engine`` (one starts), ``start`` (of a unit), ``progress`` (of its requests), ``unit`` (kept).

        Raises:
            ChildError: An engine did not start or failed.
        """
        request = self._request
        evaluation = {
            "limit": request.limit,
            "num_fewshot": request.num_fewshot,
            "apply_chat_template": request.apply_chat_template,
            "system_instruction": request.system_instruction,
            "gen_kwargs": request.gen_kwargs,
            "confirm_run_unsafe_code": request.allow_unsafe_code,
        }
        for engine in self.engines:
            yield {"event": "engine", "additional_config": engine.additional_config}
            units = {(unit.task, unit.setting): unit for unit in engine.units}
            job = {
                "work": "answer",
                "model": request.model,
                "options": request.vllm,
                "model_args": request.model_args,
                "additional_config": engine.additional_config,
                "units": [vars(unit) for unit in engine.units],
                "tasks": list(request.tasks),
                "include_path": list(request.include_path),
                "seed": request.seed,
                "evaluation": evaluation,
            }
            with contextlib.closing(events(job, request.verbose)) as happening:
                for event in happening:
                    if event["event"] == "unit":
                        del event["event"]
                        unit = units[event.pop("task"), event.pop("setting")]
                        self._folder.keep(unit, self._depends_on(unit), event)
                        self._results[unit.task, unit.setting] = event
                        yield {"event": "unit", "task": unit.task, "setting": unit.setting}
                    else:
                        yield event

    def finish(self) -> tuple[dict[str, Any], Path]:
        """Compare and write the results; they and their path."""
        layers, tasks = self._facts["layers"], self._facts["tasks"]
        names = [setting.name for setting in self.settings]
        results = {
            "schema": SCHEMA,
            "run": self._run(),
            "settings": {setting.name: _description(setting, layers) for setting in self.settings},
            "tasks": {name: {key: task[key] for key in ("output_type", "questions")} for name, task in tasks.items()},
            "results": build(self._results, tasks, names, self._facts["groups"], self._request.seed),
        }
        return results, self._folder.finish(results)

    def _describe(self) -> dict[str, Any]:
        request = self._request
        job = {
            "work": "describe",
            "model": request.model,
            "options": request.vllm,
            "model_args": request.model_args,
            "tasks": list(request.tasks),
            "include_path": list(request.include_path),
            "limit": request.limit,
            "allow_unsafe_code": request.allow_unsafe_code,
        }
        (facts,) = events(job, request.verbose)
        return facts

    def _run(self) -> dict[str, Any]:
        """What all numbers depend on."""
        request, facts = self._request, self._facts
        return {
            "model": str(Path(request.model).resolve()) if Path(request.model).is_dir() else request.model,
            "model_files": facts["files"],
            "vllm": facts["options"],
            "model_args": request.model_args,
            "device": facts["device"],
            "versions": facts["versions"],
            "limit": request.limit,
            "num_fewshot": request.num_fewshot,
            "apply_chat_template": request.apply_chat_template,
            "system_instruction": request.system_instruction,
            "gen_kwargs": request.gen_kwargs,
            "seed": request.seed,
            "own_engines": request.own_engines,
        }

    def _depends_on(self, unit: Unit) -> dict[str, Any]:
        setting = self._by_name[unit.setting]
        return {"task": self._facts["tasks"][unit.task]["digest"], "additional_config": setting.additional_config()}


def _description(setting: Setting, layers: int) -> dict[str, Any]:
    plan = setting.plan(layers)
    return {
        "additional_config": setting.additional_config(),
        "layers": [layers - 1] if plan is None else [plan.layer(depth) for depth in plan.depths],
    }
