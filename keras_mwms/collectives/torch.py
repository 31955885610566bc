"""Collectives on PyTorch tensors, by Horovod's PyTorch binding."""

from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from keras_mwms.collectives.base import Collectives


class TorchCollectives(Collectives):
    """The ring seen from PyTorch; Horovod is initialized already."""

    def __init__(self) -> None:
        super().__init__()
        self.rank = hvd.rank()
        self.size = hvd.size()

    def start_all_reduce(
        self, tensors: Sequence[torch.Tensor], name: str
    ) -> "TorchPending":
        """Begins to sum each tensor over all replicas, in place."""
        return TorchPending(list(tensors), name)

    def broadcast(
        self, tensors: Sequence[torch.Tensor], name: str, root: int = 0
    ) -> list[torch.Tensor]:
        """Returns the tensors of replica `root`."""
        handles = [
            hvd.broadcast_async(_wire(t), root, name=f"{name}.{i}")
            for i, t in enumerate(tensors)
        ]
        return [
            hvd.synchronize(h).to(t.dtype).reshape(t.shape)
            for h, t in zip(handles, tensors, strict=True)
        ]

    def all_gather(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Joins the tensors of all replicas on axis 0."""
        joined = hvd.allgather(_wire(tensor), name=name)
        return joined.to(tensor.dtype)

    def to_host(self, tensor: torch.Tensor) -> np.ndarray:
        """Returns the tensor as a NumPy array."""
        return tensor.detach().cpu().numpy()

    def from_host(self, array: np.ndarray) -> torch.Tensor:
        """Returns the array as a tensor on the CPU."""
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))


class TorchPending:
    """Sums under way. Tensors of one dtype travel as one group."""

    def __init__(self, tensors: list[torch.Tensor], name: str):
        self._tensors = tensors
        wires = [_wire(t) for t in tensors]
        groups: dict[torch.dtype, list[int]] = {}
        for i, wire in enumerate(wires):
            groups.setdefault(wire.dtype, []).append(i)
        self._groups = [
            (
                indices,
                hvd.grouped_allreduce_async_(
                    [wires[i] for i in indices],
                    name=f"{name}.{str(dtype).removeprefix('torch.')}",
                    op=hvd.Sum,
                ),
            )
            for dtype, indices in groups.items()
        ]

    def wait(self) -> list[torch.Tensor]:
        """Returns the sums."""
        sums: list[Any] = list(self._tensors)
        for indices, handle in self._groups:
            for i, wire in zip(indices, hvd.synchronize(handle), strict=True):
                like = self._tensors[i]
                sums[i] = wire.to(like.dtype).reshape(like.shape)
        return sums


def _wire(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a form that Horovod takes: dense, at least one axis."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.contiguous().reshape(tensor.shape or (1,))
