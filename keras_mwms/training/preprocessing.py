"""Layers that hold what they learnt from data before training."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives

# What says nothing about the result of a layer.
_NOT_COMPARED = ("name", "trainable", "dtype")


class _Described(NamedTuple):
    """What a layer holds beside its variables, as JSON can tell it.

    Attributes:
        name: the layer's name.
        kind: the name of its class.
        entries: what must be the same on all replicas: its vocabulary.
        numbers: what all take from the chief.
    """

    name: str
    kind: str
    entries: list[str]
    numbers: Any


def synchronize(ring: Collectives, model: keras.Model) -> None:
    """Checks vocabularies, and gives all the chief's numbers.

    `Normalization` and `Discretization` may have been adapted to other data
    on each replica. The chief's mean, variance and boundaries count.

    Args:
        ring: the collectives; every replica calls.
        model: a built model.

    Raises:
        ValueError: on every replica alike, if a vocabulary, or the
            configuration of a layer that encodes categories, differs.
    """
    layers, mine = [], []
    for layer, described in _described_layers(model):
        layers.append(layer)
        mine.append(described)
    digest = hashlib.sha256(json.dumps([d[1:] for d in mine]).encode())
    if len(set(ring.gather_values(digest.hexdigest()))) == 1:
        return
    of_all = [
        [_Described(*described) for described in each]
        for each in ring.gather_values(mine)
    ]
    orders = _orders(of_all)
    columns = [
        [each[i] for each, i in zip(of_all, places, strict=True)]
        for places in zip(*orders, strict=True)
    ]
    for column in columns:
        _check_entries(column)
    for column, place in zip(columns, orders[ring.rank], strict=True):
        if column[ring.rank].numbers != column[0].numbers:
            _take(layers[place], column[0].numbers)
    # Programs of before hold the numbers of before.
    model.train_function = None
    model.test_function = None
    model.predict_function = None


def _described_layers(
    model: keras.Model,
) -> Iterator[tuple[keras.layers.Layer, _Described]]:
    layers = _keras.layers_of(model)
    names = {id(layer): layer.name for layer in layers}
    for layer in layers:
        if isinstance(layer, keras.layers.TextVectorization):
            # The user knows no name of the lookup inside.
            for part in _keras.layers_of(layer):
                names[id(part)] = layer.name
    for layer in layers:
        entries, numbers = _entries(layer), _numbers(layer)
        if entries or numbers is not None:
            name, kind = names[id(layer)], type(layer).__name__
            yield layer, _Described(name, kind, entries, numbers)


def _entries(layer: keras.layers.Layer) -> list[str]:
    if isinstance(
        layer, keras.layers.StringLookup | keras.layers.IntegerLookup
    ):
        words = [str(word) for word in layer.get_vocabulary()]
        weights = getattr(layer, "idf_weights", None)
        if weights is None:
            return words
        return [
            f"{word} (weight {weight})"
            for word, weight in zip(
                words, keras.ops.convert_to_numpy(weights), strict=False
            )
        ]
    if isinstance(
        layer,
        keras.layers.Hashing
        | keras.layers.HashedCrossing
        | keras.layers.CategoryEncoding,
    ):
        return [
            f"{key}={value}"
            for key, value in sorted(layer.get_config().items())
            if key not in _NOT_COMPARED
        ]
    return []


def _numbers(layer: keras.layers.Layer) -> Any:
    if isinstance(layer, keras.layers.Normalization):
        if layer.mean is None:
            return None
        return [_listed(layer.mean), _listed(layer.variance)]
    if isinstance(layer, keras.layers.Discretization):
        boundaries = layer.bin_boundaries
        return None if boundaries is None else _listed(boundaries)
    return None


def _listed(tensor: Any) -> Any:
    array = keras.ops.convert_to_numpy(tensor)
    return np.asarray(array, np.float64).tolist()


def _take(layer: keras.layers.Layer, numbers: Any) -> None:
    if isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = numbers
        return
    # Its variables are the chief's already; what it computes with are
    # tensors that were made of them.
    layer.mean, layer.variance = (
        keras.ops.convert_to_tensor(np.asarray(part), dtype=layer.compute_dtype)
        for part in numbers
    )


def _orders(of_all: Sequence[Sequence[_Described]]) -> list[list[int]]:
    """Pairs the layers of the replicas: by name, or else by position.

    Returns:
        For each replica the positions of its layers in the chief's order.
    """
    names = [[described.name for described in each] for each in of_all]
    unique = len(set(names[0])) == len(names[0])
    orders = [list(range(len(each))) for each in of_all]
    if unique and all(sorted(each) == sorted(names[0]) for each in names):
        orders = [[each.index(name) for name in names[0]] for each in names]
    kinds = [
        [each[i].kind for i in order]
        for each, order in zip(of_all, orders, strict=True)
    ]
    for rank, own in enumerate(kinds):
        if own != kinds[0]:
            raise ValueError(
                "The replicas have different models; build the same model "
                "on every replica. Received: the preprocessing layers "
                f"{kinds[0]} on rank 0, {own} on rank {rank}."
            )
    return orders


def _check_entries(column: Sequence[_Described]) -> None:
    """Raises if a layer has other entries on some replica.

    Args:
        column: the layer on each replica, in rank order.
    """
    pairs = itertools.zip_longest(*(described.entries for described in column))
    for index, entries in enumerate(pairs):
        if len(set(entries)) > 1:
            ranks: dict[str | None, list[int]] = {}
            for rank, entry in enumerate(entries):
                ranks.setdefault(entry, []).append(rank)
            found = "; ".join(
                f"{'nothing' if entry is None else repr(entry)} "
                f"on rank {', '.join(map(str, where))}"
                for entry, where in ranks.items()
            )
            raise ValueError(
                "A vocabulary, or what else encodes categories, differs "
                "between the replicas: the same input would mean different "
                "things. Adapt the layer on the same data in the same order, "
                "or set what the chief has: layer.set_vocabulary("
                "keras_mwms.broadcast_object(layer.get_vocabulary())). "
                f"Received: layer '{column[0].name}' ({column[0].kind}), "
                f"entry {index}: {found}."
            )
