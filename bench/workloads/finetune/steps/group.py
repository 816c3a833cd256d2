"""Collectives between the ranks. A single rank needs no process group."""

from typing import Any


class RankGroup:
    """The collectives of a rank: gradients over the backend, everything else over the CPU (`cpu_group`)."""

    def __init__(self, torch: Any, rank: int = 0, world_size: int = 1, cpu_group: Any = None) -> None:
        self.torch, self.rank, self.world_size, self._cpu_group = torch, rank, world_size, cpu_group

    @property
    def is_single(self) -> bool:
        return self.world_size == 1

    def all_reduce_async(self, tensor: Any) -> Any:
        """Start summing `tensor` over all ranks, in place; call `wait()` on the result. None for a single rank."""
        return None if self.is_single else self.torch.distributed.all_reduce(tensor, async_op=True)

    def all_reduce_(self, tensor: Any) -> Any:
        """Sum a CPU `tensor` over all ranks, in place."""
        if not self.is_single:
            self.torch.distributed.all_reduce(tensor, group=self._cpu_group)
        return tensor

    def gather_objects(self, mine: Any) -> list[Any]:
        """Return every rank's object, in order."""
        if self.is_single:
            return [mine]
        gathered: list[Any] = [None] * self.world_size
        self.torch.distributed.all_gather_object(gathered, mine, group=self._cpu_group)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's object on every rank."""
        if self.is_single:
            return value
        box = [value]
        self.torch.distributed.broadcast_object_list(box, src=0, group=self._cpu_group)
        return box[0]

    def broadcast_(self, tensor: Any) -> None:
        """Copy a CPU `tensor` from rank 0 to all ranks, in place."""
        if not self.is_single:
            self.torch.distributed.broadcast(tensor, src=0, group=self._cpu_group)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if not self.is_single:
            self.torch.distributed.barrier(group=self._cpu_group)
