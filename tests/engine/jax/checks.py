"""Run by every rank of a ring: checks of the operations, one after another.

Prints one line of JSON, the failures of this rank by check. A check that
fails on one rank alone must still take part in all collectives of the others:
checks compare after they have communicated.
"""

import json
import sys
import traceback

import jax

from keras_mwms.engine.jax import library
from tests.engine.jax import error_checks  # noqa: F401
from tests.engine.jax import graph_checks  # noqa: F401
from tests.engine.jax import host_checks  # noqa: F401
from tests.engine.jax import value_checks  # noqa: F401
from tests.engine.jax.registry import CHECKS


def main() -> None:
    library.init()
    failures = {}
    for name in sys.argv[1:] or CHECKS:
        print(name, flush=True)
        # Without it JAX has neither float64 nor int64.
        jax.config.update("jax_enable_x64", "64" in name)
        try:
            CHECKS[name](library.rank())
        except Exception:  # noqa: BLE001 - reported, with its traceback
            failures[name] = traceback.format_exc()
    print(json.dumps(failures), flush=True)


if __name__ == "__main__":
    main()
