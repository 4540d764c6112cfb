"""All commands. Their modules import nothing heavy before a command runs."""

import typer

from confident_decoding.cli.analyze import analyze
from confident_decoding.cli.bench import bench
from confident_decoding.cli.compare import compare
from confident_decoding.cli.doctor import doctor
from confident_decoding.cli.eval import evaluate

app = typer.Typer(
    name="confident-decoding",
    help="See what Confident Decoding does to your own model.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """See what Confident Decoding does to your own model."""


app.command()(doctor)
app.command()(compare)
app.command()(bench)
app.command("eval")(evaluate)
app.command()(analyze)
