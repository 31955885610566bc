"""Rows a second that workers read: files dealt out, or all run all.

Eight TFRecord files and a costly `map`. By the policy FILE each worker reads
its own files and makes its own rows only; by DATA every worker makes all rows
and takes its slice of each batch, so that more workers make it no faster.

    python benchmarks/input.py
"""

import argparse
import collections
import pathlib
import statistics
import tempfile
import time
from typing import Any

import workers

FILES = 8
POLICIES = ("FILE", "DATA")
# Seconds of the clock, and those that a worker kept its core busy: the
# second do not change with what else runs on the machine.
UNITS = ("", " by CPU time")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=24, help="of each file")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--milliseconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = vars(parser.parse_args())
    rates: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, 2):
            of_all = workers.run(size, folder=folder, **options)
            for kind in of_all[0]:
                rates[kind, size] = [
                    statistics.median(of_one[kind]) for of_one in of_all
                ]
    for (kind, size), of_workers in rates.items():
        each = " and ".join(f"{rate:.0f}" for rate in of_workers)
        gain = sum(of_workers) / sum(rates[kind, 1])
        print(
            f"{kind}, {size} worker(s): {each} own rows a second, "
            f"together {gain:.2f} times one worker"
        )
    for unit, word in zip(UNITS, ("second", "second of CPU"), strict=True):
        ratio = sum(rates[f"FILE{unit}", 2]) / sum(rates[f"DATA{unit}", 2])
        print(f"FILE by DATA on 2 workers: {ratio:.2f} rows a {word}")


def work(
    folder: str, rows: int, batch_size: int, milliseconds: float, rounds: int
) -> dict[str, list[float]]:
    """One worker: its own rows a second, by policy and unit, of each round."""
    import tensorflow as tf

    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    paths = _files(pathlib.Path(folder), rows, ring)
    turns = ring.gather_values(_turns_of(milliseconds))[0]

    def costly(text: Any) -> Any:
        number = tf.strings.to_number(text)
        square = tf.random.stateless_uniform((64, 64), (1, 2)) / 64 + number
        for _ in tf.range(turns):
            square = tf.linalg.matmul(square, square) / 64
        return square, number

    dataset = tf.data.TFRecordDataset(paths).map(costly).batch(batch_size)
    rates: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(rounds):
        for name in POLICIES:
            of_policy = rates[name]
            adapter = data.shard(ring, dataset, policy=data.policy_of(name))
            ring.barrier()
            began, busy = time.perf_counter(), time.process_time()
            own = _own_rows(adapter, ring.rank)
            of_policy.append(own / (time.perf_counter() - began))
            rates[name + UNITS[1]].append(own / (time.process_time() - busy))
    return rates


def _own_rows(adapter: Any, rank: int) -> int:
    """Reads all steps of a pass, without a model."""
    own = 0
    for batch in adapter.get_numpy_iterator():
        own += int(batch.rows[rank])
    return own


def _files(folder: pathlib.Path, rows: int, ring: Any) -> list[str]:
    """Files with so many rows each, written by the chief."""
    import tensorflow as tf

    paths = [str(folder / f"{i}.tfrecord") for i in range(FILES)]
    if ring.rank == 0:
        for path in paths:
            with tf.io.TFRecordWriter(path) as file:
                for row in range(rows):
                    file.write(str(row).encode())
    ring.barrier()
    return paths


def _turns_of(milliseconds: float) -> int:
    """How many products of matrices take so long on one core."""
    import tensorflow as tf

    @tf.function
    def products(square: Any, turns: Any) -> Any:
        for _ in tf.range(turns):
            square = tf.linalg.matmul(square, square) / 64
        return square

    square, turns = tf.ones((64, 64)), tf.constant(500)
    products(square, turns)
    began = time.perf_counter()
    products(square, turns).numpy()
    each = (time.perf_counter() - began) / 500
    return max(1, round(milliseconds / 1e3 / each))


if __name__ == "__main__":
    workers.serve(main, work)
