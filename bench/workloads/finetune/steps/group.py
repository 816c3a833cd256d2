"""This rank among the others. One rank alone needs no process group."""

from typing import Any


class RankGroup:
    """Sums and exchanges between ranks: gradients over the backend, everything else over the CPU (`side`)."""

    def __init__(self, torch: Any, rank: int = 0, world_size: int = 1, side: Any = None) -> None:
        self.torch, self.rank, self.world_size, self._side = torch, rank, world_size, side

    @property
    def is_alone(self) -> bool:
        return self.world_size == 1

    def begin_sum(self, tensor: Any) -> Any:
        """Begin to add up `tensor` over all ranks, in place; `wait()` on what is returned. None for one rank."""
        return None if self.is_alone else self.torch.distributed.all_reduce(tensor, async_op=True)

    def sum_(self, tensor: Any) -> Any:
        """`tensor`, on the CPU, added up over all ranks, in place."""
        if not self.is_alone:
            self.torch.distributed.all_reduce(tensor, group=self._side)
        return tensor

    def objects(self, mine: Any) -> list[Any]:
        """Every rank's object, in order."""
        if self.is_alone:
            return [mine]
        found: list[Any] = [None] * self.world_size
        self.torch.distributed.all_gather_object(found, mine, group=self._side)
        return found

    def from_first(self, value: Any) -> Any:
        """Rank 0's object, on every rank."""
        if self.is_alone:
            return value
        box = [value]
        self.torch.distributed.broadcast_object_list(box, src=0, group=self._side)
        return box[0]

    def copy_from_first_(self, tensor: Any) -> None:
        """Make `tensor`, on the CPU, what it is on rank 0."""
        if not self.is_alone:
            self.torch.distributed.broadcast(tensor, src=0, group=self._side)

    def wait(self) -> None:
        """Until every rank is here."""
        if not self.is_alone:
            self.torch.distributed.barrier(group=self._side)
