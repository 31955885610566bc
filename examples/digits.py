"""Trains a small network on handwritten digits, on one worker or on many.

    python examples/digits.py
    horovodrun -np 2 -H localhost:2 --gloo python examples/digits.py

or once on each machine with its own `TF_CONFIG`. The digits come with
scikit-learn: nothing is downloaded.
"""

import argparse
import json
import math
import pathlib

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mwms


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on scanned digits.")
    add = parser.add_argument
    add("--epochs", type=int, default=12)
    add("--batch-size", type=int, default=32, help="of all workers together")
    add("--save", default="digits.keras", help="file for the trained model")
    add("--history", help="JSON file for the losses and accuracies")
    return parser.parse_args()


def make_model(steps: int) -> keras.Model:
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
    rate = keras.optimizers.schedules.CosineDecay(0.003, decay_steps=steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    options = parse_options()
    keras.utils.set_random_seed(7)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    images, unseen_images, labels, unseen_labels = train_test_split(
        images, labels, test_size=0.2, random_state=7, stratify=labels
    )

    steps = options.epochs * math.ceil(len(images) / options.batch_size)
    model = make_model(steps)
    keras_mwms.distribute(model)  # The line that puts all workers to work.

    history = model.fit(
        images,
        labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(unseen_images, unseen_labels),
    ).history
    model.save(options.save)

    if keras_mwms.is_chief():
        if options.history:
            pathlib.Path(options.history).write_text(json.dumps(history))
        print(
            f"Validation accuracy {history['val_accuracy'][-1]:.4f} with "
            f"{keras_mwms.world_size()} worker(s). Saved: {options.save}"
        )


if __name__ == "__main__":
    main()
