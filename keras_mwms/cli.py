"""The program `keras-mwms`."""

import typer

from keras_mwms.engine.install.command import install_horovod_command

app = typer.Typer(
    name="keras-mwms",
    help="Synchronous data-parallel training on several workers for Keras 3.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("install-horovod")(install_horovod_command)


@app.callback()
def _keep_subcommands() -> None:
    """Makes typer ask for a command also while there is only one."""


def main() -> None:
    """Runs the program."""
    app()
