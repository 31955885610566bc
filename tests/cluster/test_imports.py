"""The cluster is found out before any framework is loaded."""

import pathlib
import subprocess
import sys

import keras_mwms

# The package's own __init__ may load Keras, its room `cluster` may not: an
# empty package of that name stands in for the former.
PROGRAM = """
import sys
import types

package = types.ModuleType("keras_mwms")
package.__path__ = [sys.argv[1]]
sys.modules["keras_mwms"] = package

import keras_mwms.cluster

allowed = {"keras_mwms", "__main__", *sys.stdlib_module_names}
new = {name.partition(".")[0] for name in sys.modules}
print("loaded", *sorted(new - allowed - set(sys.argv[2:])))
"""
BEFORE = """
import sys

print(*{name.partition(".")[0] for name in sys.modules})
"""


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout.split()


def test_nothing_but_the_standard_library_is_imported():
    folder = str(pathlib.Path(keras_mwms.__file__).parent)
    at_start = run(BEFORE)  # what the environment itself loads (.pth files)
    assert run(PROGRAM, folder, *at_start) == ["loaded"]
