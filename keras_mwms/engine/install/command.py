"""The command line of the installation."""

from typing import Annotated

import typer


def install_horovod_command(
    framework: Annotated[
        list[str] | None,
        typer.Option(
            "--framework",
            "-f",
            help="Build for this framework only: tensorflow, torch or jax. "
            "May be repeated. By default, for all that are installed.",
        ),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            help="Use a wheel that was built before from the same sources, "
            "versions, compiler and HOROVOD_* variables.",
        ),
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(help="Minutes that the build may take.", min=1.0),
    ] = 60.0,
) -> None:
    """Builds Horovod for the frameworks of this environment, installs it.

    HOROVOD_* variables are obeyed, for example HOROVOD_GPU_OPERATIONS=NCCL or
    HOROVOD_WITH_MPI=1. Exit status: 0 installed, 1 failed, 2 tools missing.
    """
    # Imported late, so that the help of the program is quick.
    from rich.console import Console

    from keras_mwms.engine.install.errors import InstallError
    from keras_mwms.engine.install.install import install_horovod

    console = Console()
    try:
        done = install_horovod(
            framework, use_cache=cache, console=console, timeout=60 * timeout
        )
    except InstallError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_status) from None
    names = ", ".join(done.frameworks)
    if done.already_installed:
        typer.echo(f"Horovod for {names} is installed already; nothing to do.")
        return
    how = "from the cache" if done.from_cache else "newly built"
    typer.echo(
        f"Horovod for {names} is installed and loads "
        f"({how}, {done.seconds:.0f} s)."
    )
