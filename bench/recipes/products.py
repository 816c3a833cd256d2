"""One product of a frozen NF4 weight, or of several that share their input, with the LoRA adapters on it.

q, k and v are one product, and so are gate and up: one wide matrix product keeps the GPU busier than three or two, and
the input is read once. Nothing is stored joined: each weight is dequantized into its part of one bf16 matrix, which
lives as long as the product takes.

    u   = s drop(x) A^T
    y   = x W^T + u B^T            the adapters' product first, to which the base product is added inside the library's
                                   own kernel, in float32
    d_u = d_y B
    d_x = d_y W + s drop(d_u A)
    d_A = s d_u^T drop(x)
    d_B = d_y^T u

x: (T, K); W: (N, K), its linear layers' rows one below the other; A: (R, K) and B: (N_j, R) of each adapted layer; s =
lora_alpha / R. W is frozen and gets no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels import lora, nf4
from bench.kernels.lora import Side


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One LoRA adapter: its trained parameters, float32, which columns of the product it is on, and B as it is computed
    with."""

    a: Any
    b: Any
    columns: slice
    work_b: Any


@dataclass(frozen=True, kw_only=True)
class Product:
    """Linear layers with one input. `scaling` is s, `dropout` its probability; `adapters` may be empty.

    `work_a` is every A as it is computed with, one below the other; `held` is W itself, where it is not made each time.
    """

    weights: tuple[nf4.Nf4, ...]
    adapters: tuple[Adapter, ...] = ()
    scaling: float = 1.0
    dropout: float = 0.0
    work_a: Any = None
    held: Any = None

    @property
    def rows(self) -> int:
        """N, of all its layers together."""
        return sum(weight.shape[0] for weight in self.weights)

    @property
    def rank(self) -> int:
        return int(self.adapters[0].a.shape[0]) if self.adapters else 0

    @property
    def parameters(self) -> tuple[Any, ...]:
        """What is trained, in the order in which `backward` gives its gradients: every A and its B."""
        return tuple(parameter for adapter in self.adapters for parameter in (adapter.a, adapter.b))

    @property
    def working_copies(self) -> tuple[Any, ...]:
        """Of `parameters`, in their order."""
        works = zip(self.work_a.split(self.rank), self.adapters, strict=True) if self.adapters else ()
        return tuple(copy for a, adapter in works for copy in (a, adapter.work_b))

    def weight(self, like: Any) -> Any:
        """W of shape (N, K), of the dtype and on the device of `like`."""
        return self.held if self.held is not None else dequantized(self.weights, like.dtype, like.device)

    def forward(self, x: Any, seed: int) -> tuple[Any, Any]:
        """(y, u); u is None without adapters."""
        weight = self.weight(x)
        if not self.adapters:
            return x @ weight.T, None
        u = lora.down(x, self.work_a, self._side(seed))
        covered = sum(adapter.b.shape[0] for adapter in self.adapters) == self.rows
        y = (torch.empty if covered else torch.zeros)((len(x), self.rows), dtype=x.dtype, device=x.device)
        for part, adapter in zip(u.split(self.rank, dim=-1), self.adapters, strict=True):
            torch.mm(part, adapter.work_b.T, out=y[:, adapter.columns])
        return y.addmm_(x, weight.T), u

    def input_gradient(self, d_y: Any, seed: int) -> tuple[Any, Any]:
        """(d_x, d_u)."""
        d_x = d_y @ self.weight(d_y)
        d_u = self.small_gradient(d_y)
        if d_u is not None:
            lora.add_input_gradient_(d_x, d_u, self.work_a, self._side(seed))
        return d_x, d_u

    def small_gradient(self, d_y: Any) -> Any:
        """d_u (T, n R), None without adapters; by itself where no one asks for d_x."""
        if not self.adapters:
            return None
        d_u = torch.empty((len(d_y), self.rank * len(self.adapters)), dtype=d_y.dtype, device=d_y.device)
        for part, adapter in zip(d_u.split(self.rank, dim=-1), self.adapters, strict=True):
            torch.mm(d_y[:, adapter.columns], adapter.work_b, out=part)
        return d_u

    def parameter_gradients(self, d_y: Any, d_u: Any, x: Any, u: Any, seed: int) -> tuple[Any, ...]:
        """Gradients of `parameters`, in their order."""
        if not self.adapters:
            return ()
        d_a = lora.weight_gradient(d_u, x, self._side(seed)).split(self.rank)
        found: list[Any] = []
        for place, (adapter, part) in enumerate(zip(self.adapters, u.split(self.rank, dim=-1), strict=True)):
            found += (d_a[place].to(adapter.a.dtype), _product(d_y[:, adapter.columns].T, part, adapter.b.dtype))
        return tuple(found)

    def _side(self, seed: int) -> Side:
        return Side(rank=self.rank, scaling=self.scaling, p=self.dropout, seed=seed)


def dequantized(weights: Iterable[nf4.Nf4], dtype: Any, device: Any) -> Any:
    """These weights one below the other, each dequantized into its place."""
    weights = tuple(weights)
    rows = sum(weight.shape[0] for weight in weights)
    whole, first = torch.empty((rows, weights[0].shape[1]), dtype=dtype, device=device), 0
    for part in weights:
        nf4.dequantize(part, whole[first : first + part.shape[0]])
        first += part.shape[0]
    return whole


def refresh(products: Iterable[Product]) -> None:
    """Bring every working copy up to its parameter: what an optimizer's step changes, in a few kernels for all."""
    pairs = [pair for each in products for pair in zip(each.working_copies, each.parameters, strict=True)]
    if pairs:
        copies, parameters = zip(*pairs, strict=True)
        torch._foreach_copy_(list(copies), list(parameters))


def _product(left: Any, right: Any, dtype: Any) -> Any:
    """left @ right in `dtype`, unrounded on the way where the device's library can do that."""
    if left.is_cuda and left.dtype != dtype:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)
