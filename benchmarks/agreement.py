"""What it costs that replicas agree on each step of data of unknown length.

Two workers, each on a core of its own, train on the same batches: those of a
generator, whose end nobody knows, and those of a `PyDataset`, whose length
all know. The first need an exchange a step, which is begun one step ahead.

    KERAS_BACKEND=torch python benchmarks/agreement.py
"""

import argparse
import collections
import statistics
import time
from typing import Any

import workers


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--milliseconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=10)
    of_all = workers.run(2, **vars(parser.parse_args()))
    chief = of_all[0]
    print(f"{chief['backend']}, {chief['rows']} rows a step")
    for unit, words in (("", "ms"), (" busy", "ms of CPU")):
        known, unknown = chief[f"known{unit}"], chief[f"unknown{unit}"]
        for name, times in (("known", known), ("unknown", unknown)):
            print(
                f"{name:8} {statistics.median(times):6.2f} {words} a step "
                f"({min(times):.2f} to {max(times):.2f})"
            )
        ratios = [u / k for u, k in zip(unknown, known, strict=True)]
        print(
            f"ratio    {statistics.median(ratios):6.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds)"
        )


def work(milliseconds: float, steps: int, rounds: int) -> dict[str, Any]:
    """One worker: times of a step in milliseconds, one a round."""
    import keras
    import numpy as np

    import keras_mwms
    from keras_mwms import world

    ring = world.join().ring
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((512,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    keras_mwms.distribute(model, auto_shard_policy="DATA")

    class Clock(keras.callbacks.Callback):
        seconds = busy = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.seconds = -time.perf_counter()
            self.busy = -time.process_time()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds += time.perf_counter()
            self.busy += time.process_time()

    class Known(keras.utils.PyDataset):
        def __init__(self, batch: Any, steps: int):
            super().__init__()
            self.batch, self.steps = batch, steps

        def __len__(self) -> int:
            return self.steps

        def __getitem__(self, index: int) -> Any:
            return self.batch

    def generator(batch: Any, steps: int) -> Any:
        for _ in range(steps):
            yield batch

    def timed(make: Any, rows: int, steps: int) -> tuple[float, float]:
        batch = (
            np.ones((rows, 512), "float32"),
            np.ones((rows, 1), "float32"),
        )
        clock = Clock()
        model.fit(make(batch, steps), verbose=0, callbacks=[clock])
        return 1e3 * clock.seconds / steps, 1e3 * clock.busy / steps

    rows = 256
    for _ in range(3):
        timed(Known, rows, 3)
        took, _ = timed(Known, rows, 15)
        rows = 2 * round(rows * milliseconds / took / 2)
        # The chief's, for all.
        rows = max(2, ring.gather_values(rows)[0])
    makers = {"known": Known, "unknown": generator}
    times: dict[str, list[float]] = collections.defaultdict(list)
    for make in makers.values():
        timed(make, rows, 5)
    for number in range(rounds):
        names = list(makers) if number % 2 else list(makers)[::-1]
        for name in names:
            took, busy = timed(makers[name], rows, steps)
            times[name].append(took)
            times[f"{name} busy"].append(busy)
    backend = keras.backend.backend()
    return {"rows": rows, "backend": backend, **times}


if __name__ == "__main__":
    workers.serve(main, work)
