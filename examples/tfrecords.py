"""Trains on TFRecord files, of which each worker reads its own.

    python examples/tfrecords.py
    horovodrun -np 2 -H localhost:2 --gloo python examples/tfrecords.py

or once on each machine with its own `TF_CONFIG`, and `--folder` on a disk that
all of them share. `tf.data` reads the files for every backend: PyTorch and JAX
need `tensorflow-cpu` beside them.
"""

import argparse
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mwms

FILES = 8


class Reader:
    """Makes batches of the rows in files, and counts those that are read."""

    def __init__(self) -> None:
        self.rows = 0

    def batches(self, folder: pathlib.Path, batch_size: int) -> tf.data.Dataset:
        """Batches of the rows of all files, in an order that is always new."""
        files = sorted(str(path) for path in folder.glob("*.tfrecord"))
        return (
            tf.data.TFRecordDataset(files)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            .shuffle(1000, seed=7)
            .batch(batch_size)
            .map(self.counted)
        )

    def counted(self, images: tf.Tensor, labels: tf.Tensor) -> Any:
        """The batch as it is."""

        def count(labels: np.ndarray) -> np.ndarray:
            self.rows += len(labels)
            return labels

        counted = tf.numpy_function(count, [labels], labels.dtype)
        return images, tf.ensure_shape(counted, labels.shape)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on TFRecord files.")
    add = parser.add_argument
    add("--epochs", type=int, default=12)
    add("--batch-size", type=int, default=32, help="of all workers together")
    add("--folder", default="digits", help="for the files; all workers see it")
    return parser.parse_args()


def write(folder: pathlib.Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes the rows into so many files, each of every so manyth row."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        path = str(folder / f"{number}.tfrecord")
        with tf.io.TFRecordWriter(path) as file:
            for image, label in zip(
                images[number::FILES], labels[number::FILES], strict=True
            ):
                pixels = tf.train.FloatList(value=image.ravel())
                digit = tf.train.Int64List(value=[label])
                features = {
                    "image": tf.train.Feature(float_list=pixels),
                    "label": tf.train.Feature(int64_list=digit),
                }
                row = tf.train.Example(
                    features=tf.train.Features(feature=features)
                )
                file.write(row.SerializeToString())


def parse(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    features = {
        "image": tf.io.FixedLenFeature((8, 8, 1), tf.float32),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    row = tf.io.parse_single_example(text, features)
    return row["image"], row["label"]


def make_model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="gelu"),
            layers.Conv2D(32, 3, padding="same", activation="gelu"),
            layers.Flatten(),
            layers.Dense(64, activation="gelu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    options = parse_options()
    folder = pathlib.Path(options.folder)
    keras.utils.set_random_seed(7)
    if keras.backend.backend() != "tensorflow":
        # TensorFlow reads only: it would take the memory of the GPUs.
        tf.config.set_visible_devices([], "GPU")

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    images, unseen_images, labels, unseen_labels = train_test_split(
        images, labels, test_size=0.2, random_state=7, stratify=labels
    )
    if keras_mwms.is_chief():
        write(folder, images, labels)
    keras_mwms.barrier()  # The others wait until the files are there.

    model = make_model()
    # Each worker reads its own files. Without the policy, AUTO does it too.
    keras_mwms.distribute(model, auto_shard_policy="FILE")
    reader = Reader()
    in_each_epoch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(reader, "rows", 0)
    )
    history = model.fit(
        reader.batches(folder, options.batch_size),
        epochs=options.epochs,
        validation_data=(unseen_images, unseen_labels),
        callbacks=[in_each_epoch],
    ).history

    read = [
        keras_mwms.broadcast_object(reader.rows, root=rank)
        for rank in range(keras_mwms.world_size())
    ]
    if keras_mwms.is_chief():
        for rank, rows in enumerate(read):
            print(f"Worker {rank} read {rows} rows in each epoch.")
        print(f"Validation accuracy {history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
