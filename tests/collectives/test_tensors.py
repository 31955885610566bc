"""Sums, broadcasts and gathers of the backend's tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_mwms import world
from tests.collectives import tensors
from tests.collectives.tensors import DTYPES
from tests.collectives.tensors import SHAPES
from tests.collectives.tensors import tensor
from tests.pool import Clusters

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def ring() -> Any:
    return world.join().ring


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce(
    cluster: Clusters, size: int, wrap: Wrap, dtype: str
) -> None:
    def check() -> None:
        run = wrap(lambda x: ring().all_reduce([x], "sum"))
        for shape in SHAPES:
            mine = tensors.values(dtype, shape, ring().rank)
            given = tensor(mine, dtype)
            (result,) = run(given)
            expected = tensors.total(dtype, shape, size)
            tensors.assert_like(result, given, expected)
            # The argument still holds what it did.
            tensors.assert_like(given, given, mine)

    cluster(size).run(check)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast(
    cluster: Clusters, size: int, wrap: Wrap, dtype: str
) -> None:
    def check() -> None:
        run = wrap(lambda x: ring().broadcast([x], "one", 1))
        for shape in SHAPES:
            mine = tensors.values(dtype, shape, ring().rank)
            given = tensor(mine, dtype)
            (result,) = run(given)
            expected = tensors.values(dtype, shape, 1)
            tensors.assert_like(result, given, expected)
            tensors.assert_like(given, given, mine)

    cluster(size).run(check)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather(
    cluster: Clusters, size: int, wrap: Wrap, dtype: str
) -> None:
    def check() -> None:
        run = wrap(lambda x: ring().all_gather(x, "rows"))
        for shape in SHAPES:
            every = [tensors.values(dtype, shape, r) for r in range(size)]
            given = tensor(every[ring().rank], dtype)
            result = run(given)
            # A scalar is one row.
            expected = np.concatenate([np.atleast_1d(a) for a in every])
            tensors.assert_like(result, given, expected)

    cluster(size).run(check)


@pytest.mark.parametrize("rows", [(0, 2, 1), (3, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "bool"])
def test_all_gather_of_different_rows(
    cluster: Clusters, size: int, dtype: str, rows: tuple[int, ...]
) -> None:
    def check() -> None:
        every = [
            tensors.values(dtype, (rows[rank], 2, 3), rank)
            for rank in range(size)
        ]
        given = tensor(every[ring().rank], dtype)
        result = ring().all_gather(given, "ragged")
        tensors.assert_like(result, given, np.concatenate(every))

    cluster(size).run(check)


@pytest.mark.backend("tensorflow")
def test_all_gather_of_different_rows_in_a_graph(
    cluster: Clusters, size: int
) -> None:
    def check() -> None:
        import tensorflow as tf

        @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
        def gather(x: Any) -> Any:
            return ring().all_gather(x, "ragged")

        every = [
            tensors.values("float32", (rank, 2), rank) for rank in range(size)
        ]
        given = tensor(every[ring().rank], "float32")
        tensors.assert_like(gather(given), given, np.concatenate(every))

    cluster(size).run(check)


@pytest.mark.parametrize("operation", ["sum", "broadcast"])
def test_a_group_of_mixed_dtypes_and_shapes(
    cluster: Clusters, size: int, wrap: Wrap, operation: str
) -> None:
    kinds = [(d, s) for d in DTYPES for s in ((), (0, 3), (5,), (2, 3, 4))]

    def run(*given: Any) -> list[Any]:
        if operation == "sum":
            return ring().all_reduce(given, "mixed")
        return ring().broadcast(given, "mixed", 1)

    def expected(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        if operation == "sum":
            return tensors.total(dtype, shape, size)
        return tensors.values(dtype, shape, 1)

    def check() -> None:
        rank = ring().rank
        given = [tensor(tensors.values(*kind, rank), kind[0]) for kind in kinds]
        for result, one, kind in zip(
            wrap(run)(*given), given, kinds, strict=True
        ):
            tensors.assert_like(result, one, expected(*kind))

    cluster(size).run(check)


def test_a_group_of_nothing(cluster: Clusters) -> None:
    def check() -> tuple[Any, Any, Any]:
        pending = ring().start_all_reduce([], "nothing")
        return (
            pending.wait(),
            ring().all_reduce([], "nothing"),
            ring().broadcast([], "nothing"),
        )

    assert cluster(2).run(check) == [([], [], [])] * 2


def test_two_groups_under_way(cluster: Clusters, size: int) -> None:
    def check() -> None:
        rank = ring().rank
        given = [tensor(np.full(3, 10.0 * k + rank), "float32") for k in (1, 2)]
        first = ring().start_all_reduce(given[:1], "first")
        second = ring().start_all_reduce(given[1:], "second")
        ranks = sum(range(size))
        for pending, base in ((second, 20), (first, 10)):
            (result,) = pending.wait()
            expected = np.full(3, float(base * size + ranks))
            np.testing.assert_array_equal(tensors.host(result), expected)

    cluster(size).run(check)


def test_names_of_any_kind(cluster: Clusters, wrap: Wrap) -> None:
    # Names come from attributes of the user's model, for example.
    names = ["_private.sum", "a/b", "c/b", "Größe (1)"]

    def run(x: Any) -> list[Any]:
        return [ring().all_reduce([x + i], n)[0] for i, n in enumerate(names)]

    def check() -> None:
        results = wrap(run)(tensor(np.ones(2), "float32"))
        for i, result in enumerate(results):
            np.testing.assert_array_equal(tensors.host(result), 2.0 * (1 + i))

    cluster(2).run(check)


@pytest.mark.parametrize("operation", ["sum", "broadcast", "gather"])
@pytest.mark.backend("torch")
def test_torch_tensors_of_any_layout(cluster: Clusters, operation: str) -> None:
    def run(x: Any) -> Any:
        if operation == "sum":
            return ring().all_reduce([x], "layout")[0]
        if operation == "broadcast":
            return ring().broadcast([x], "layout", 1)[0]
        return ring().all_gather(x, "layout")

    def check() -> None:
        import torch

        every = [
            tensors.values("float32", (4, 6), rank)[:, ::2].T
            for rank in range(2)
        ]
        whole = tensor(
            tensors.values("float32", (4, 6), ring().rank), "float32"
        )
        given = whole[:, ::2].T.requires_grad_()
        assert not given.is_contiguous()
        result = run(given)
        assert not result.requires_grad
        expected = {
            "sum": every[0] + every[1],
            "broadcast": every[1],
            "gather": np.concatenate(every),
        }
        tensors.assert_like(result, given, expected[operation])
        assert isinstance(result, torch.Tensor)

    cluster(2).run(check)


def test_sums_of_complex_numbers(cluster: Clusters, wrap: Wrap) -> None:
    def check() -> None:
        import keras

        factor = 1 + 2j if ring().rank else 3 - 1j
        run = wrap(lambda *given: ring().all_reduce(given, "complex"))
        for shape in SHAPES:
            mine = tensors.values("float32", shape, 0) * factor
            given = tensor(mine, "complex64"), tensor(np.ones(2), "float32")
            result, other = run(*given)
            assert result.dtype == given[0].dtype
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(result),
                tensors.values("float32", shape, 0) * (4 + 1j),
            )
            tensors.assert_like(other, given[1], np.full(2, 2.0))

    cluster(2).run(check)


@pytest.mark.backend("torch")
def test_torch_sums_in_place_where_it_is_allowed(cluster: Clusters) -> None:
    def check() -> bool:
        given = tensor(np.ones(3), "float32").requires_grad_()
        (result,) = ring().start_all_reduce([given], "place").wait()
        np.testing.assert_array_equal(tensors.host(result), 2.0)
        return result.data_ptr() == given.data_ptr()

    assert cluster(2).run(check) == [True, True]


@pytest.mark.backend("tensorflow")
def test_tensorflow_variables(cluster: Clusters) -> None:
    def check() -> None:
        import tensorflow as tf

        given = tf.Variable(tensors.values("float32", (3,), ring().rank))
        (result,) = ring().all_reduce([given], "variable")
        tensors.assert_like(result, given, tensors.total("float32", (3,), 2))

    cluster(2).run(check)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.backend("tensorflow")
def test_indexed_slices_are_summed(
    cluster: Clusters, size: int, wrap: Wrap, dtype: str
) -> None:
    def check() -> None:
        import tensorflow as tf

        # Rank r has r rows: of every place the last, of which all have one.
        rank = ring().rank
        mine = tf.IndexedSlices(
            tensor(tensors.values(dtype, (rank, 2), rank), dtype),
            tf.range(4 - rank, 4),
            tf.constant([4, 2]),
        )
        other = tensor(np.ones(2), dtype)
        run = wrap(lambda *given: ring().all_reduce(given, "sparse"))
        result, ones = run(mine, other)
        assert isinstance(result, tf.IndexedSlices)
        assert result.values.dtype == dtype
        assert result.indices.dtype == tf.int32
        expected = np.zeros((4, 2))
        for r in range(size):
            expected[4 - r :] += tensors.values(dtype, (r, 2), r)
        dense = tf.convert_to_tensor(result)
        np.testing.assert_array_equal(tensors.host(dense), expected)
        np.testing.assert_array_equal(tensors.host(ones), float(size))

    cluster(size).run(check)


@pytest.mark.parametrize("operation", ["broadcast", "gather"])
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("float16", "uint16"), ("bfloat16", "uint16"), ("float32", "uint32")],
)
def test_bits_arrive_as_they_were(
    cluster: Clusters, operation: str, dtype: str, bits: str
) -> None:
    """Quiet nans with a payload, -0.0 and the smallest number."""
    shift = {"float16": 9, "bfloat16": 6, "float32": 22}[dtype]
    one = 1 << np.dtype(bits).itemsize * 8 - 1
    nan = (one >> 1) & ~((1 << shift) - 1)
    patterns = np.array([nan | 5, one | nan | 3, one, 1], bits)

    def check() -> None:
        mine = patterns if ring().rank == 1 else np.zeros_like(patterns)
        given = of_bits(mine, dtype)
        if operation == "broadcast":
            (result,) = ring().broadcast([given], "bits", 1)
        else:
            result = ring().all_gather(given, "bits")[4:]
        assert result.dtype == given.dtype
        np.testing.assert_array_equal(bits_of(result, bits), patterns)

    cluster(2).run(check)


def of_bits(array: np.ndarray, dtype: str) -> Any:
    """A tensor with these bits."""
    import keras

    if keras.backend.backend() == "torch":
        import torch

        signed = torch.from_numpy(array.view(f"int{array.itemsize * 8}"))
        return signed.view(getattr(torch, dtype))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.bitcast(tf.constant(array), dtype)
    import jax

    return jax.lax.bitcast_convert_type(array, dtype)


def bits_of(tensor: Any, bits: str) -> np.ndarray:
    """The bits of a tensor."""
    import keras

    if keras.backend.backend() == "torch":
        import torch

        return tensor.view(getattr(torch, bits)).numpy()
    return np.asarray(tensor).view(bits)
