"""Data sets of rows that can be sent to other processes, for the workers."""

import random

import keras
import numpy as np


class Data(keras.utils.PyDataset):
    """Batches of rows, which keeps what it is told.

    Args:
        rows: number of rows, or `None` for no end.
        size: rows of a batch.
        form: what a batch is made of.
        mixes: whether the rows get another order after each epoch.
        **options: those of a `PyDataset`.
    """

    def __init__(self, rows, size, form="x y", mixes=False, **options):
        super().__init__(**options)
        self.rows = rows
        self.size = size
        self.form = form
        self.mixes = mixes
        self.events = []
        self.order = np.arange(rows or 0)

    @property
    def num_batches(self):
        return None if self.rows is None else -(-self.rows // self.size)

    def __getitem__(self, index):
        rows = np.arange(index * self.size, (index + 1) * self.size)
        if self.rows is not None:
            rows = self.order[rows[rows < self.rows]]
        y = rows.astype("float32")
        x = np.stack([y, y], axis=1)
        return {
            "x": x,
            "x y": (x, y),
            "labels": (x, rows % 2),
            "weighted": [x, y, y + 1],
            "dict": {"a": x, "b": x + 1},
            "nested": ({"a": x, "b": x + 1}, y),
        }[self.form]

    def on_epoch_begin(self):
        self.events.append("begin")

    def on_epoch_end(self):
        self.events.append("end")
        if self.mixes:
            # One by NumPy, one by Python.
            np.random.shuffle(self.order)
            random.shuffle(self.order)
