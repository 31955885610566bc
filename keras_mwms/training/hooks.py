"""Hooks the ring into a model: its steps, its optimizers, its methods.

Everything is set on the instance: the model's class, its configuration and
what it saves stay as they are.
"""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms import data
from keras_mwms import saving
from keras_mwms.collectives import Collectives
from keras_mwms.data import taking
from keras_mwms.training import backend as backends
from keras_mwms.training import callbacks as own_callbacks
from keras_mwms.training import failures
from keras_mwms.training import merging
from keras_mwms.training import metrics
from keras_mwms.training import optimizers
from keras_mwms.training import predictions
from keras_mwms.training import preprocessing
from keras_mwms.training import state
from keras_mwms.training import stateful
from keras_mwms.training.gradients import GradientReducer
from keras_mwms.training.in_sync import Comparison

_ATTRIBUTE = "_keras_mwms_hooks"


class Hooks:
    """A model's part in the ring.

    Args:
        ring: the collectives.
        model: the user's model.
    """

    def __init__(self, ring: Collectives, model: keras.Model):
        self.ring = ring
        self.model = model
        self._backend = backends.load(keras.backend.backend())
        self._reducers: dict[int, GradientReducer] = {}
        # By identity; the variables are held, so that none is mistaken for
        # another that had its place in memory.
        self._index: dict[int, int] = {}
        self._synchronized: list[Any] = []
        self._original = {
            name: getattr(model, name)
            for name in (
                "compile",
                "fit",
                "evaluate",
                "predict",
                "train_on_batch",
                "test_on_batch",
            )
        }
        self._evaluating = False
        self._merger = merging.Merger(
            ring, model, lambda v: self._index.get(id(v))
        )
        self.check_in_sync_every: int | None = None
        self.auto_shard_policy = data.AutoShardPolicy.AUTO

    def attach(self) -> None:
        """Hooks into the model and gives it the chief's state if it is built.

        Every replica calls.
        """
        model = self.model
        make = self._backend
        model.train_step = make.train_step(model, self.ring, model.train_step)
        model.test_step = make.test_step(model, self.ring, model.test_step)
        make.limit_steps_ahead(model)
        finish = getattr(model, _keras.finish_logs_name)
        setattr(model, _keras.finish_logs_name, self._finish(finish))
        for name, original in self._original.items():
            own = getattr(self, f"_{name}")
            setattr(model, name, self._documented(own, original))
        saving.hook(model, self.ring.rank)
        for name in saving.METHODS:
            setattr(model, name, self._after_merging(getattr(model, name)))
        setattr(model, _ATTRIBUTE, self)
        if model.compiled:
            self._prepare_compiled()
        if model.built:
            self._synchronize()

    def comparison(self) -> Comparison:
        """Compares the model's state between the replicas."""
        return Comparison(
            self.ring,
            self._backend,
            self.model,
            optimizers.of_model(self.model),
        )

    def _documented(
        self, own: Callable[..., Any], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`own` with the name, signature and documentation of `original`."""

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            with failures.told_as_lost(self.ring):
                return own(*args, **kwargs)

        return method

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        self._original["compile"](*args, **kwargs)
        self._prepare_compiled()

    def _fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        **of_subclass: Any,
    ) -> Any:
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = taking.split(
                (x, y, sample_weight), validation_split
            )
        train = self._shard(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            epochs=epochs,
        )
        if validation_data is not None:
            validation_data = self._shard(
                *keras.utils.unpack_x_y_sample_weight(validation_data),
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
            )
        self._prepare(train, steps_per_epoch)
        if validation_data is not None:
            self._check_batches(validation_data, validation_steps)
        self._synchronize()
        comparison = self.comparison()
        with own_callbacks.agreeing(
            self.ring,
            self.model,
            optimizers.of_model(self.model),
            callbacks,
            self.check_in_sync_every,
            comparison.check,
        ) as callbacks:
            history = self._original["fit"](
                train,
                epochs=epochs,
                verbose=self._verbose(verbose),
                callbacks=callbacks,
                validation_data=validation_data,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_freq=validation_freq,
                **of_subclass,
            )
        comparison.adopt_chiefs()
        return history

    def _evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not _keras.is_cached_evaluation(kwargs):
            x = self._shard(
                x, y, sample_weight, batch_size=batch_size, steps=steps
            )
            self._prepare(x, steps)
            self._synchronize_if_new()
            self._merger.before_read()
            self._merger.start()
        self._evaluating = True
        try:
            return self._original["evaluate"](
                x,
                verbose=self._verbose(verbose),
                steps=steps,
                callbacks=callbacks,
                return_dict=return_dict,
                **kwargs,
            )
        finally:
            self._evaluating = False

    def _predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        shard = self._shard(
            x, batch_size=batch_size, steps=steps, with_share=False
        )
        self._check_batches(shard, steps)
        if not _keras.layers_are_built(self.model):
            self.model(keras.utils.unpack_x_y_sample_weight(shard.sample())[0])
            self._check_batches(shard, steps)
        self._synchronize_if_new()
        self._merger.before_read()
        outputs = self._original["predict"](
            shard,
            verbose=self._verbose(verbose),
            steps=steps,
            callbacks=callbacks,
        )
        return predictions.joined(self.ring, shard.fed_rows(steps), outputs)

    def _train_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._prepare_batch(x, *args, **kwargs)
        self._merger.before_step()
        return self._original["train_on_batch"](x, *args, **kwargs)

    def _test_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._prepare_batch(x, *args, **kwargs)
        self._merger.before_read()
        return self._original["test_on_batch"](x, *args, **kwargs)

    def _prepare_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        **_: Any,
    ) -> None:
        """Like `_prepare`, for a batch that comes without an adapter."""
        self._hook_optimizers()
        if not _keras.is_built(self.model):
            batch = keras.tree.map_structure(
                lambda a: None if a is None else np.asarray(a),
                (x, y, sample_weight),
            )
            self._backend.build(self.model, batch)
        self._synchronize_if_new()

    def _finish(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def finish_logs(logs: Any) -> Any:
            if self._evaluating:
                # Moving statistics do not change here.
                self._merger.merge(state.aggregated_variables(self.model))
            else:
                self._merger.merge(merging.merged_variables(self.model))
                for _, optimizer in optimizers.of_model(self.model):
                    state.merge_accumulators(self.ring, optimizer)
            return metrics.finished_logs(self.ring, self.model, original, logs)

        return finish_logs

    def _after_merging(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def save_merged(*args: Any, **kwargs: Any) -> Any:
            self._merger.before_read()
            return save(*args, **kwargs)

        return save_merged

    def _shard(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return data.shard(
            self.ring,
            x,
            *args,
            policy=self.auto_shard_policy,
            steps_per_execution=self.model.steps_per_execution,
            **kwargs,
        )

    def _verbose(self, verbose: Any) -> Any:
        """Progress and printed lines are the chief's alone."""
        return verbose if self.ring.rank == 0 else 0

    def _prepare_compiled(self) -> None:
        self._backend.prepare_compiled(self.model)
        # Functions made before do not know the hooks.
        self.model.train_function = None
        self.model.test_function = None
        for reducer in self._reducers.values():
            reducer.forget()
        self._hook_optimizers()

    def _hook_optimizers(self) -> None:
        for label, optimizer in optimizers.of_model(self.model):
            if id(optimizer) not in self._reducers:
                reducer = GradientReducer(
                    self.ring,
                    self._backend,
                    optimizer,
                    label,
                    lambda v: self._index.get(id(v)),
                )
                reducer.hook()
                self._reducers[id(optimizer)] = reducer

    def _prepare(self, shard: Any, steps: int | None) -> None:
        """Creates all variables, so that they can start from the chief's."""
        self._hook_optimizers()
        self._check_batches(shard, steps)
        batch = None
        if not _keras.is_built(self.model):
            peeks = self._backend.peeks_to_build
            batch = shard.peek() if peeks else shard.sample()
        self._backend.build(self.model, batch)
        self._check_batches(shard, steps)

    def _check_batches(self, shard: Any, steps: int | None) -> None:
        stateful.check_batches(self.ring, self.model, shard, steps)

    def _synchronize_if_new(self) -> None:
        known = self._index.keys()
        if any(id(v) not in known for v in self.model.variables):
            self._synchronize()

    def _synchronize(self) -> None:
        """Starts from the chief's state. Every replica calls."""
        model = self.model
        preprocessing.synchronize(self.ring, model)
        paths = self._backend.paths_of(model)
        variables = self._in_chiefs_order(model.variables, paths)
        of_optimizers = list(
            optimizers.named(model, optimizers.of_model(model), paths)
        )
        of_optimizers = self._in_chiefs_order(
            [v for _, v in of_optimizers],
            optimizers.for_pairing(of_optimizers),
        )
        self._synchronized = variables
        self._index = {id(v): i for i, v in enumerate(variables)}
        self._merger.before_read()
        state.broadcast(self.ring, [*variables, *of_optimizers])
        self._merger.start()
        if self.ring.rank:
            state.spread_seeds(self.ring, model)
            self._backend.spread_random_state(self.ring.rank)
        for _, optimizer in optimizers.of_model(model):
            state.clear_others_accumulators(self.ring, optimizer)

    def _in_chiefs_order(
        self, variables: Sequence[Any], paths: Mapping[int, str]
    ) -> list[Any]:
        order = state.agreed_order(self.ring, variables, paths)
        return [variables[i] for i in order]


def hooks_of(model: keras.Model) -> Hooks | None:
    """The hooks of a model that is distributed already."""
    return getattr(model, _ATTRIBUTE, None)
