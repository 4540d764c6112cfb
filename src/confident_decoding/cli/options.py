"""Arguments and options that several commands share."""

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder of a checkpoint, or its name on a model hub.", show_default=False),
]
AdditionalConfig = Annotated[
    str | None,
    typer.Option(
        "--additional-config",
        metavar="JSON",
        help="Settings as `vllm serve` takes them, or the name of a file with them. The switch may be left out. "
        "Default: the paper's.",
        show_default=False,
    ),
]
EngineOptions = Annotated[
    str,
    typer.Option(
        "--vllm",
        metavar="OPTIONS",
        help='Further options of `vllm serve`, in one quoted string: --vllm "--max-model-len 4096 --dtype float16".',
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what vLLM says (on standard error).")]
