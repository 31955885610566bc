"""Runs the installation: `python -m keras_mwms.engine.install`."""

import typer

from keras_mwms.engine.install.command import install_horovod_command

if __name__ == "__main__":
    typer.run(install_horovod_command)
