"""Trains a small network on handwritten digits, on one worker or on many.

    python examples/digits.py
    horovodrun -np 2 -H localhost:2 --gloo python examples/digits.py

or once on each machine with its own `TF_CONFIG`. The digits come with
scikit-learn: nothing is downloaded.
"""

import argparse
import json
import pathlib

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mwms


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument(
        "--batch-size", type=int, default=32, help="rows of a global batch"
    )
    parser.add_argument("--save", default="digits.keras", help="the model")
    parser.add_argument("--history", help="JSON file for the learning curve")
    return parser.parse_args()


def make_model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
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

    model = make_model()
    keras_mwms.distribute(model)  # the line that makes it train on all workers

    history = model.fit(
        images,
        labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(unseen_images, unseen_labels),
    )
    model.save(options.save)

    if keras_mwms.is_chief():
        if options.history:
            pathlib.Path(options.history).write_text(
                json.dumps(history.history)
            )
        accuracy = history.history["val_accuracy"][-1]
        print(
            f"validation accuracy {accuracy:.4f} after {options.epochs} epochs "
            f"on {keras_mwms.world_size()} worker(s), saved to {options.save}"
        )


if __name__ == "__main__":
    main()
