"""Forward and backward of a micro-batch as CUDA graphs: two launches instead of a thousand.

In 8 bits the host needs nearly as long to start a step's kernels as the device to run them, so whatever disturbs the
host shows in the step. A graph is captured from the step itself when a second micro-batch of one shape comes: every
kernel, its order and its bits are those of the step that is not captured. What changes from step to step is copied into
tensors of the graph: ids, labels, positions, the samples' edges, the dropout's seed, the share of the loss.

A graph keeps the memory of its activations for itself. So cached memory is given back before a graph is captured, and
the graph is dropped before an evaluation and when another shape comes. Steps go on uncaptured where shapes change often
or memory does not suffice; `why_not` says so.

Not covered: several ranks, whose gradients travel while backward runs.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bench.kernels.triton_compat import power_of_two
from bench.qlora.recipes.offload import Offload
from bench.qlora.step import TrainingStep

MOST_CHANGES = 8  # of shape, in one process; more captures would cost more than they gain
LEAST_EDGES = 32
COPIES, ROOM_BYTES = 3, 64 << 20  # of the adapters in a checkpoint, with their optimizer's state; and what else comes

Shape = tuple[tuple[str, tuple[int, ...]], ...]


class CapturedGraph:
    """Two graphs of one shape of micro-batch. Made on a device that nothing else uses; adds to every `grad`."""

    def __init__(self, model: Any, trained: Sequence[Any], inputs: Mapping[str, Any], edges: int) -> None:
        """`edges`: room for so many. Captures, and computes nothing. Raises torch.OutOfMemoryError."""
        device = next(iter(inputs.values())).device
        self._inputs = {name: torch.empty_like(tensor) for name, tensor in inputs.items()}
        if "edges" in inputs:
            self._inputs["edges"] = torch.zeros(edges, dtype=torch.int32, device=device)
        self._seed = torch.zeros((), dtype=torch.int64, device=device)
        self._share = torch.ones((), dtype=torch.float32, device=device)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._load(inputs)
        pool = torch.cuda.graph_pool_handle()
        # What other threads do meanwhile (a loader that pins memory, a checkpoint that is written) is theirs.
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"), _joined(model.offload):
            mean = model(**self._inputs, seed=self._seed).loss
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"), _joined(model.offload):
            if model.offload is not None:  # a kernel more for each gradient, none of which waits for the others
                torch.autograd.backward(mean, self._share, inputs=trained)
            else:
                gradients = torch.autograd.grad(mean, trained, self._share)
                torch._foreach_add_([parameter.grad for parameter in trained], gradients)
        self._mean = mean.detach()
        self._read = model.constants()  # tensors that the graphs read and nothing else might keep

    def __call__(self, inputs: Mapping[str, Any], seed: int, share: float, clock: Any) -> Any:
        self._load(inputs)
        self._seed.fill_(seed)
        self._share.fill_(share)
        self._forward.replay()
        clock.end("forward")
        self._backward.replay()
        clock.end("backward")
        return self._mean.clone()

    def _load(self, inputs: Mapping[str, Any]) -> None:
        for name, tensor in inputs.items():
            room = self._inputs[name]
            if name == "edges":  # the rest are samples without tokens, at the end
                room[len(tensor) :] = tensor[-1]
                room = room[: len(tensor)]
            room.copy_(tensor)


class CapturedStep(TrainingStep):
    """A step whose forward and backward are captured, where `may_capture`. `model.graph` is the graph there is."""

    _was_captured = False
    _shape: Shape | None = None
    _changes = 0
    _edges = LEAST_EDGES

    def gradient(self, inputs: dict[str, Any], share: float) -> Any:
        graph = self._graph(inputs)
        if graph is None:
            return super().gradient(inputs, share)
        return graph(inputs, self.model.next_seed(), share, self.clock)

    @property
    def captured(self) -> str | None:
        if self.why_not is not None:
            return f"no: {self.why_not}"
        return "yes" if self._was_captured else None

    def clear(self) -> None:
        if not self.may_capture or self.model.graph is None:
            super().clear()
        else:  # a graph adds to these very tensors
            torch._foreach_zero_([parameter.grad for parameter in self._trained])

    def _graph(self, inputs: Mapping[str, Any]) -> CapturedGraph | None:
        """The graph for these inputs, captured now if the last ones had this shape too."""
        model = self.model
        if not self.may_capture:
            return None
        if "edges" in inputs:
            self._edges = max(self._edges, power_of_two(len(inputs["edges"])))
        shape = tuple((name, (self._edges,) if name == "edges" else tuple(each.shape)) for name, each in inputs.items())
        if shape == self._shape:
            captured: CapturedGraph | None = model.graph
            return self._capture(inputs) if captured is None else captured
        self._changes += self._shape is not None
        self._shape, model.graph = shape, None
        if self._changes == MOST_CHANGES:
            self._give_up("micro-batches of many shapes")
        return None

    def _capture(self, inputs: Mapping[str, Any]) -> CapturedGraph | None:
        without = [parameter for parameter in self._trained if parameter.grad is None]
        for parameter in without:
            parameter.grad = torch.zeros_like(parameter)
        _give_back()
        graph = None
        with contextlib.suppress(torch.OutOfMemoryError):
            graph = CapturedGraph(self.model, self._trained, inputs, self._edges)
            self._leave_room()
            self.model.graph, self._was_captured = graph, True
            return graph
        del graph
        for parameter in without:
            parameter.grad = None
        self._give_up("not enough memory")
        gc.collect()  # what the attempt made is in circles
        _give_back()
        return None

    def _leave_room(self) -> None:
        """Raises torch.OutOfMemoryError where a checkpoint's copies would find no memory beside the graph."""
        trained = sum(parameter.numel() * parameter.element_size() for parameter in self._trained)
        torch.empty(COPIES * trained + ROOM_BYTES, dtype=torch.uint8, device=self._trained[0].device)
        torch.cuda.empty_cache()

    def _give_up(self, why: str) -> None:
        self.may_capture, self.why_not = False, why


@contextlib.contextmanager
def _joined(offload: Offload | None) -> Iterator[None]:
    """At the end, also by an error, the stream of the copies has joined: else a capture cannot end."""
    try:
        yield
    finally:
        if offload is not None:
            offload.join()


def _give_back() -> None:
    """Give all memory back that nothing uses, that of cuBLAS' workspaces among it; they are made anew when needed."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
