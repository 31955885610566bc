"""Checks inside computations: gradients, control flow, order, threads."""

import functools
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from keras_mwms.engine.jax import ops
from tests.engine.jax.registry import SIZE
from tests.engine.jax.registry import check
from tests.engine.jax.values import joined
from tests.engine.jax.values import mine
from tests.engine.jax.values import same
from tests.engine.jax.values import summed


@check
def the_gradient_is_the_sum_of_cotangents(rank: int) -> None:
    weights = jnp.asarray(mine("float32", rank))

    def loss(x: jax.Array, y: jax.Array, n: jax.Array) -> jax.Array:
        sx, sy, sn = ops.allreduce([x, y, n], ["x", "y", "n"])
        return jnp.sum(weights * sx) + jnp.sum(sy**2).astype("float32") + sn

    x = jnp.ones((2, 3))
    y = jnp.full(2, rank, jnp.bfloat16)
    n = jnp.asarray(rank)
    plain = jax.grad(loss, argnums=(0, 1))
    for grad in (plain, jax.jit(plain)):
        gx, gy = grad(x, y, n)
        same(gx, summed("float32", SIZE))
        # 2 * (0 + 1 + 2), from each of three ranks.
        same(gy, np.full(2, 18, jnp.bfloat16))


@check
def a_gradient_through_a_mean_of_all_rows(rank: int) -> None:
    rows = jnp.asarray(mine("float32", rank, (4,)))

    def loss(x: jax.Array) -> jax.Array:
        total, count = ops.allreduce([x.sum(), jnp.float32(4)], ["t", "c"])
        # Every rank has its rows' part of the variance of all rows.
        return jnp.sum((x - total / count) ** 2) / count

    def alone(x: jax.Array) -> jax.Array:
        return jnp.mean((x - x.mean()) ** 2)

    everything = jnp.asarray(joined("float32", SIZE, (4,)))
    got = jax.jit(jax.grad(loss))(rows)
    wanted = jax.grad(alone)(everything)[4 * rank : 4 * rank + 4]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@check
def a_gradient_with_recomputation(rank: int) -> None:
    def layer(x: jax.Array) -> jax.Array:
        return ops.allreduce([x], ["layer"])[0] ** 2

    def grad(function: Callable[[jax.Array], jax.Array]) -> jax.Array:
        loss = jax.grad(lambda x: layer(function(x)).sum())
        return jax.jit(loss)(jnp.full(2, rank + 1.0))

    # x = 6, y = x**2 = 36, the sum of y is 108, the loss its square. Every
    # rank adds 2 * 108 to the cotangent of each y, and the chain goes on.
    wanted = np.full(2, 3 * (3 * 2 * 108) * 2 * 6, np.float32)
    same(grad(layer), wanted)
    same(grad(jax.checkpoint(layer)), wanted)


@check
def sixty_independent_operations(rank: int) -> None:
    def step(arrays: list[jax.Array]) -> list[jax.Array]:
        return [
            ops.allreduce([x], [f"layer{i}/kernel"])[0]
            for i, x in enumerate(arrays)
        ]

    for length in (2, 1000):
        arrays = [jnp.full(length, i + rank * 100.0) for i in range(60)]
        for _ in range(2):
            got = jax.jit(step)(arrays)
        for i in range(60):
            same(got[i], np.full(length, 3 * i + 300, np.float32))


def _compute(x: jax.Array) -> jax.Array:
    def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.tanh(carry @ carry) * 0.5, None

    return jax.lax.scan(step, x, None, length=10)[0]


@check
def a_waiting_operation_holds_up_no_other(rank: int) -> None:
    # Rank 0 waits for the first, the others for the second, until all have
    # computed what lies between: the program must go on meanwhile.
    names = ("first", "second") if rank == 0 else ("second", "first")

    @jax.jit
    def step(values: dict[str, jax.Array], x: jax.Array) -> object:
        one, two = names
        sums = {one: ops.allreduce([values[one]], [one])[0]}
        late = values[two] + _compute(x)[0, 0]
        (sums[two],) = ops.allreduce([late], [two])
        # A program of few steps would be run one step after another.
        return sums, [jnp.cumsum(x * i, axis=i % 2) for i in range(10)]

    values = {"first": jnp.full(500, rank + 1.0), "second": jnp.ones(500)}
    for _ in range(3):
        sums, _ = step(values, jnp.zeros((200, 200)))
        same(sums["first"], np.full(500, 6, np.float32))
        same(sums["second"], np.full(500, 3, np.float32))


@check
def what_follows_an_operation_holds_up_no_other(rank: int) -> None:
    done = threading.Event()

    def communicate() -> None:
        jax.block_until_ready(ops.allreduce([jnp.ones(1)], ["meanwhile"]))
        done.set()

    def wait(_: np.ndarray) -> np.ndarray:
        threading.Thread(target=communicate).start()
        return np.asarray(done.wait(10))

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        (total,) = ops.allreduce([x], ["before"])
        flag = jax.ShapeDtypeStruct((), "bool")
        return jax.pure_callback(wait, flag, total)

    assert step(jnp.ones(1))


@check
def programs_of_one_thread_run_in_order(rank: int) -> None:
    @jax.jit
    def slow(x: jax.Array, y: jax.Array) -> jax.Array:
        late = y + _compute(x)[0, 0]
        return ops.allreduce([late], ["same"])[0]

    @jax.jit
    def quick(y: jax.Array) -> jax.Array:
        return ops.allreduce([y], ["same"])[0]

    x = jnp.zeros((200, 200))
    for _ in range(3):
        got = slow(x, jnp.full(900, rank + 1.0)), quick(jnp.full(9, rank + 2.0))
        same(got[0], np.full(900, 6, np.float32))
        same(got[1], np.full(9, 9, np.float32))


@check
def results_that_nobody_uses(rank: int) -> None:
    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        (total,) = ops.allreduce([x], ["unused"])
        ops.broadcast([x], ["unused"])
        ops.allgather(x, "unused.too")
        return total if rank == 0 else x

    same(step(jnp.ones(2)), np.full(2, 3.0 if rank == 0 else 1.0, np.float32))


@check
def in_the_body_of_a_scan(rank: int) -> None:
    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            (total,) = ops.allreduce([carry + rank], ["scanned"])
            return total, total

        return jax.lax.scan(body, x, None, length=3)

    last, every = step(jnp.zeros(2))
    # x -> 3 x + 3, from 0.
    same(every, np.asarray([[3, 3], [12, 12], [39, 39]], np.float32))
    same(last, np.asarray([39, 39], np.float32))


@check
def in_a_branch_of_a_cond(rank: int) -> None:
    @jax.jit
    def step(x: jax.Array, reduce: jax.Array) -> jax.Array:
        return jax.lax.cond(
            reduce, lambda y: ops.allreduce([y], ["branch"])[0], jnp.negative, x
        )

    # The third step of the accumulation is the one that reduces.
    got = [step(jnp.full(2, rank + 1.0), jnp.asarray(i == 2)) for i in range(4)]
    own = np.full(2, -(rank + 1.0), np.float32)
    for i, wanted in enumerate([own, own, np.full(2, 6, np.float32), own]):
        same(got[i], wanted)


@check
def donated_arguments(rank: int) -> None:
    @functools.partial(jax.jit, donate_argnums=0)
    def step(x: jax.Array) -> jax.Array:
        return x - ops.allreduce([x], ["donated"])[0] / 4

    x = jnp.full(1000, rank + 1.0)
    for _ in range(2):
        x = step(x)
    # The sum 6 falls by a factor of 1 - 3/4.
    same(x, np.full(1000, rank + 1 - 1.5 - 0.375, np.float32))
