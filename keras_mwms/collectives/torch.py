"""Collectives on PyTorch tensors, by Horovod's PyTorch binding."""

import time
from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from keras_mwms.collectives.base import Collectives

# What Horovod cannot sum is summed in a wider dtype.
_SUMMED_AS = {
    torch.bfloat16: torch.float32,
    torch.bool: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint8: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
# What is only moved goes as bits, by the size of an element.
_MOVED_AS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Seconds between looks at whether an exchange of host values has ended.
_SHORT_PAUSE = 1e-4
_LONG_PAUSE = 5e-4


class TorchCollectives(Collectives):
    """The ring seen from PyTorch; Horovod is initialized already."""

    traces = False

    def __init__(self) -> None:
        super().__init__()
        self.rank = hvd.rank()
        self.size = hvd.size()

    def start_all_reduce(
        self, tensors: Sequence[torch.Tensor], name: str
    ) -> "TorchPending":
        """Begins to sum each tensor over all replicas, in place."""
        return TorchPending(tensors, name)

    def all_reduce(
        self, tensors: Sequence[torch.Tensor], name: str
    ) -> list[torch.Tensor]:
        """Sums copies of the tensors over all replicas."""
        copies = [t.detach().clone() for t in tensors]
        return self.start_all_reduce(copies, name).wait()

    def broadcast(
        self, tensors: Sequence[torch.Tensor], name: str, root: int = 0
    ) -> list[torch.Tensor]:
        """Returns the tensors of replica `root`."""
        handles = [
            hvd.broadcast_async(_bits(t), root, name=f"{name}.{i}")
            for i, t in enumerate(tensors)
        ]
        return [
            hvd.synchronize(h).view(t.dtype).reshape(t.shape)
            for h, t in zip(handles, tensors, strict=True)
        ]

    def all_gather(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Joins the tensors of all replicas on axis 0."""
        handle = hvd.allgather_async(_bits(tensor), name=name)
        joined: torch.Tensor = hvd.synchronize(handle).view(tensor.dtype)
        return joined

    def _all_gather_bytes(self, data: np.ndarray, name: str) -> np.ndarray:
        handle = hvd.allgather_async(self.from_host(data), name=name)
        # `hvd.synchronize` would keep the core busy, on which another thread
        # may be at work on a step.
        pause = _SHORT_PAUSE
        while not hvd.poll(handle):
            time.sleep(pause)
            pause = min(2 * pause, _LONG_PAUSE)
        return self.to_host(hvd.synchronize(handle))

    def to_host(self, tensor: torch.Tensor) -> np.ndarray:
        """Returns the tensor as a NumPy array."""
        array: np.ndarray = tensor.detach().cpu().numpy()
        return array

    def from_host(self, array: np.ndarray) -> torch.Tensor:
        """Returns the array as a tensor on the CPU."""
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))


class TorchPending:
    """Sums under way. Tensors of one dtype and device travel as one group."""

    def __init__(self, tensors: Sequence[torch.Tensor], name: str):
        self._tensors = list(tensors)
        groups: dict[str, list[int]] = {}
        wires = [_summable(t) for t in tensors]
        for i, wire in enumerate(wires):
            kind = f"{wire.device.type}.{wire.dtype}".replace("torch.", "")
            groups.setdefault(kind, []).append(i)
        self._groups = [
            (
                indices,
                hvd.grouped_allreduce_async_(
                    [wires[i] for i in indices],
                    name=f"{name}.{kind}",
                    op=hvd.Sum,
                ),
            )
            for kind, indices in groups.items()
        ]

    def wait(self) -> list[torch.Tensor]:
        """Returns the sums."""
        sums: list[Any] = list(self._tensors)
        for indices, handle in self._groups:
            for i, wire in zip(indices, hvd.synchronize(handle), strict=True):
                sums[i] = _from_summable(wire, self._tensors[i])
        return sums


def _summable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a dtype that Horovod sums, on at least one axis."""
    tensor = _dense(tensor)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.to(_SUMMED_AS.get(tensor.dtype, tensor.dtype))


def _from_summable(wire: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.is_complex():
        wire = torch.view_as_complex(wire)
    return wire.to(like.dtype).reshape(like.shape)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = _dense(tensor)
    return tensor.view(_MOVED_AS[tensor.element_size()])


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in order in memory, on at least one axis."""
    return tensor.detach().contiguous().reshape(tensor.shape or (1,))
