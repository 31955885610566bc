"""How much memory training on a memory-mapped file takes.

    horovodrun -np 2 -H localhost:2 --gloo python benchmarks/memmap.py
    python benchmarks/memmap.py --dtype float64

or with `TF_CONFIG`, once for each worker. Every replica makes a file with
holes in a temporary folder, trains on it with shuffle, validation_split and
class_weight, evaluates and predicts, and prints a line. The chief then does
the same in one new process with Keras alone.

What is counted is anonymous memory (`RssAnon` in /proc/self/status): what the
process has allocated, and nobody else can use. It is the peak while fit,
evaluate and predict run, less what was there before, with the model built and
its steps compiled on a few rows. Batches that wait for their step are in it.
Not in it, and printed beside it, are the pages of the file that are mapped
into the process (`RssFile`): the system shares them between processes, and
takes them back when it needs the memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import workers

FEATURES = 784
BATCH = 1024

LAUNCHERS = ("HOROVOD_", "TF_CONFIG")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--no-comparison",
        action="store_true",
        help="leave out the run with Keras alone",
    )
    return parser.parse_args()


def pin():
    """Keeps this process to one core, another for each process of a host."""
    os.environ |= workers.ONE_THREAD
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    number = int(os.environ.get("HOROVOD_LOCAL_RANK", task.get("index", 0)))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def memory():
    """`(anonymous, of files)` of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return [int(fields[name].split()[0]) // 1024 for name in FIELDS]


FIELDS = ("RssAnon", "RssFile")


class Peak(threading.Thread):
    """The peaks of `memory` above what it was, until stopped."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before = self.highest = memory()
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(0.005):
            self.highest = [*map(max, self.highest, memory())]

    def stop(self):
        self.stopped.set()
        self.join()
        return [h - b for h, b in zip(self.highest, self.before, strict=True)]


def measure(path, args):
    """Trains on the file; the first thing that imports a framework."""
    import keras
    import numpy as np

    import keras_mwms

    class File(np.memmap):
        """Counts the rows that are taken."""

        rows_read = 0

        def __getitem__(self, rows):
            part = super().__getitem__(rows)
            # What is larger than a batch is a view that reads nothing.
            if self.ndim == 2 and len(part) <= BATCH:
                File.rows_read += len(part)
            return part

    rows = (args.megabytes << 20) // (FEATURES * np.dtype(args.dtype).itemsize)
    with open(path, "wb") as file:
        file.truncate(rows * FEATURES * np.dtype(args.dtype).itemsize)
    x = File(path, args.dtype, mode="r", shape=(rows, FEATURES))
    y = np.arange(rows) % 2
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("sgd", "binary_crossentropy")
    keras_mwms.distribute(model)

    read = []
    use(model, np.array(x[: 20 * BATCH]), y[: 20 * BATCH])
    File.rows_read = 0
    peak = Peak()
    peak.start()
    start = time.monotonic()
    use(model, x, y, lambda: read.append(File.rows_read))
    seconds = time.monotonic() - start
    anonymous, of_file = peak.stop()
    size = keras_mwms.world_size()
    who = (
        f"replica {keras_mwms.rank()} of {size}" if size > 1 else "Keras alone"
    )
    print(
        f"{keras.backend.backend()}, {args.dtype}, {args.megabytes} MB, {who}: "
        f"{anonymous} MB of extra anonymous memory at most "
        f"({of_file} MB of pages of files), "
        + (f"{read[0]} of {rows} rows read in fit, " if size > 1 else "")
        + f"{seconds:.1f} s",
        flush=True,
    )
    keras_mwms.barrier()
    return size > 1 and keras_mwms.is_chief()


def use(model, x, y, after_fit=lambda: None):
    """Fits, evaluates and predicts."""
    model.fit(
        x,
        y,
        batch_size=BATCH,
        shuffle=True,
        validation_split=0.1,
        class_weight={0: 1.0, 1: 2.0},
        verbose=0,
    )
    after_fit()
    model.evaluate(x, y, batch_size=BATCH, verbose=0)
    model.predict(x, batch_size=BATCH, verbose=0)


def compare(args):
    """The same in one process, with Keras alone."""
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHERS)
    }
    options = [f"--megabytes={args.megabytes}", f"--dtype={args.dtype}"]
    subprocess.run(
        [sys.executable, __file__, *options], env=outside, check=True
    )


def main():
    args = parse_args()
    pin()
    with tempfile.TemporaryDirectory(prefix="memmap-") as folder:
        is_first_of_many = measure(Path(folder) / "rows.bin", args)
    if is_first_of_many and not args.no_comparison:
        compare(args)


if __name__ == "__main__":
    main()
