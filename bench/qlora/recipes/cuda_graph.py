"""CUDA graphs of a micro-batch's forward and backward: two launches instead of a thousand.

In 8 bits, launching a step's kernels takes the host nearly as long as running them takes the device, so any disturbance
of the host slows the step. A graph is captured from the step itself when a second micro-batch has the same shape:
kernels, their order and their bits equal those of the uncaptured step. Values that change between steps are copied into
tensors of the graph: ids, labels, positions, sample edges, dropout seed, share of the loss.

A graph reserves the memory of its activations. Therefore cached memory is freed before a capture, and the graph is
dropped before an evaluation and when the shape changes. If shapes change often or memory is short, steps continue
uncaptured and `no_capture_reason` is set.

With `has_gradient_hooks` the hooks of the gradients run while backward is captured, and may record events into it.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bench.kernels.triton_compat import next_power_of_2
from bench.qlora.recipes.offload import Offload
from bench.qlora.step import TrainingStep

MAX_SHAPE_CHANGES = 8  # in one process; more captures would cost more than they gain
MIN_EDGES = 32
CHECKPOINT_COPIES = 3  # a checkpoint copies the adapters and their optimizer state
HEADROOM_BYTES = 64 << 20  # for all other allocations

Shape = tuple[tuple[str, tuple[int, ...]], ...]


class CapturedGraph:
    """Forward and backward graphs of one micro-batch shape. Adds to every `grad`. Needs exclusive use of the device."""

    def __init__(
        self, model: Any, trained: Sequence[Any], inputs: Mapping[str, Any], edges: int, *, has_hooks: bool = False
    ) -> None:
        """Capture without computing; `edges` is the maximum number of edges. Raises torch.OutOfMemoryError."""
        device = next(iter(inputs.values())).device
        self._inputs = {name: torch.empty_like(tensor) for name, tensor in inputs.items()}
        if "edges" in inputs:
            self._inputs["edges"] = torch.zeros(edges, dtype=torch.int32, device=device)
        self._seed = torch.zeros((), dtype=torch.int64, device=device)
        self._share = torch.ones((), dtype=torch.float32, device=device)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._copy_inputs(inputs)
        pool = torch.cuda.graph_pool_handle()
        # Do not capture the work of other threads: a loader pinning memory, a checkpoint being written.
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"), _joining(model.offload):
            mean = model(**self._inputs, seed=self._seed).loss
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"), _joining(model.offload):
            if has_hooks or model.offload is not None:  # one more kernel per gradient, but none waits for the others
                torch.autograd.backward(mean, self._share, inputs=trained)
            else:
                gradients = torch.autograd.grad(mean, trained, self._share)
                torch._foreach_add_([parameter.grad for parameter in trained], gradients)
        self._mean = mean.detach()
        self._constants = model.constants()  # keeps tensors alive that the graphs read

    def __call__(self, inputs: Mapping[str, Any], seed: int, share: float, clock: Any) -> Any:
        self._copy_inputs(inputs)
        self._seed.fill_(seed)
        self._share.fill_(share)
        self._forward.replay()
        clock.end("forward")
        self._backward.replay()
        clock.end("backward")
        return self._mean.clone()

    def _copy_inputs(self, inputs: Mapping[str, Any]) -> None:
        for name, tensor in inputs.items():
            buffer = self._inputs[name]
            if name == "edges":  # unused edges are empty samples at the end
                buffer[len(tensor) :] = tensor[-1]
                buffer = buffer[: len(tensor)]
            buffer.copy_(tensor)


class CapturedStep(TrainingStep):
    """A step whose forward and backward are captured if `may_capture`. `model.graph` is the current graph."""

    _was_captured = False
    _shape: Shape | None = None
    _changes = 0
    _edges = MIN_EDGES

    def forward_backward(self, inputs: dict[str, Any], share: float) -> Any:
        graph = self._graph_for(inputs)
        if graph is None:
            return super().forward_backward(inputs, share)
        return graph(inputs, self.model.next_seed(), share, self.clock)

    @property
    def capture_status(self) -> str | None:
        if self.no_capture_reason is not None:
            return f"no: {self.no_capture_reason}"
        return "yes" if self._was_captured else None

    def clear_gradients(self) -> None:
        if not self.may_capture or self.model.graph is None:
            super().clear_gradients()
        else:  # the graph adds to exactly these tensors
            torch._foreach_zero_([parameter.grad for parameter in self._trained])

    def _graph_for(self, inputs: Mapping[str, Any]) -> CapturedGraph | None:
        """Return the graph for these inputs; capture it now if the last inputs had the same shape."""
        model = self.model
        if not self.may_capture:
            return None
        if "edges" in inputs:
            self._edges = max(self._edges, next_power_of_2(len(inputs["edges"])))
        shape = tuple((name, (self._edges,) if name == "edges" else tuple(each.shape)) for name, each in inputs.items())
        if shape == self._shape:
            captured: CapturedGraph | None = model.graph
            return self._capture(inputs) if captured is None else captured
        self._changes += self._shape is not None
        self._shape, model.graph = shape, None
        if self._changes == MAX_SHAPE_CHANGES:
            self._disable_capture("micro-batches of many shapes")
        return None

    def _capture(self, inputs: Mapping[str, Any]) -> CapturedGraph | None:
        without_gradient = [parameter for parameter in self._trained if parameter.grad is None]
        for parameter in without_gradient:
            parameter.grad = torch.zeros_like(parameter)
        _free_cached_memory()
        graph = None
        with contextlib.suppress(torch.OutOfMemoryError):
            graph = CapturedGraph(self.model, self._trained, inputs, self._edges, has_hooks=self.has_gradient_hooks)
            self._check_headroom()
            self.model.graph, self._was_captured = graph, True
            return graph
        del graph
        for parameter in without_gradient:
            parameter.grad = None
        self._disable_capture("not enough memory")
        gc.collect()  # the failed attempt's tensors are in reference cycles
        _free_cached_memory()
        return None

    def _check_headroom(self) -> None:
        """Raise torch.OutOfMemoryError if a checkpoint's copies would not fit into memory next to the graph."""
        trained = sum(parameter.numel() * parameter.element_size() for parameter in self._trained)
        torch.empty(CHECKPOINT_COPIES * trained + HEADROOM_BYTES, dtype=torch.uint8, device=self._trained[0].device)
        torch.cuda.empty_cache()

    def _disable_capture(self, reason: str) -> None:
        self.may_capture, self.no_capture_reason = False, reason


@contextlib.contextmanager
def _joining(offload: Offload | None) -> Iterator[None]:
    """Join the copy stream on exit, also after an error: otherwise a capture cannot end."""
    try:
        yield
    finally:
        if offload is not None:
            offload.join()


def _free_cached_memory() -> None:
    """Free all unused cached memory, including cuBLAS' workspaces, which are recreated on demand."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
