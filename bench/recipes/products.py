"""One product of a frozen NF4 weight, or of several that share their input, with the LoRA adapters on it.

q, k and v are one product, and so are gate and up: one wide matrix product keeps the GPU busier than three or two, and the
input is read once. Nothing is stored joined: each weight is dequantized into its part of one bf16 matrix, which lives as
long as the product takes.

    y   = x W^T + drop(x) A^T (s B)^T        the adapters' product is written first, and the base product added to it inside
                                             the library's own kernel, in float32
    d_x = d_y W + drop(d_u A),  d_u = d_y (s B)
    d_A = d_u^T drop(x)
    d_B = s d_y^T u

x: (T, K); W: (N, K), its linear layers' rows one below the other; A: (R, K) and B: (N_j, R) of each adapted layer; s =
lora_alpha / R. W is frozen and gets no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels import lora, nf4
from bench.kernels.lora import Dropout


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One LoRA adapter: its trained parameters, float32, and which columns of the product it is on."""

    a: Any
    b: Any
    columns: slice


@dataclass(frozen=True, kw_only=True)
class Product:
    """Linear layers with one input. `scaling` is s, `dropout` its probability; `adapters` may be empty."""

    weights: tuple[nf4.Nf4, ...]
    adapters: tuple[Adapter, ...]
    scaling: float
    dropout: float

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

    def weight(self, like: Any) -> Any:
        """W of shape (N, K), of the dtype and on the device of `like`."""
        whole = torch.empty((self.rows, self.weights[0].shape[1]), dtype=like.dtype, device=like.device)
        first = 0
        for part in self.weights:
            nf4.dequantize(part, whole[first : first + part.shape[0]])
            first += part.shape[0]
        return whole

    def forward(self, x: Any, seed: int) -> tuple[Any, Any]:
        """(y, u); u is None without adapters."""
        weight = self.weight(x)
        if not self.adapters:
            return x @ weight.T, None
        u = lora.down(x, self._joined_a(x), self.rank, Dropout(p=self.dropout, seed=seed))
        covered = sum(adapter.b.shape[0] for adapter in self.adapters) == self.rows
        y = (torch.empty if covered else torch.zeros)((len(x), self.rows), dtype=x.dtype, device=x.device)
        for part, adapter in zip(u.split(self.rank, dim=-1), self.adapters, strict=True):
            torch.mm(part, self._scaled_b(adapter, x).T, out=y[:, adapter.columns])
        return y.addmm_(x, weight.T), u

    def input_gradient(self, d_y: Any, seed: int) -> tuple[Any, Any]:
        """(d_x, d_u)."""
        d_x = d_y @ self.weight(d_y)
        d_u = self.small_gradient(d_y)
        if d_u is not None:
            lora.add_input_gradient_(d_x, d_u, self._joined_a(d_y), self.rank, Dropout(p=self.dropout, seed=seed))
        return d_x, d_u

    def small_gradient(self, d_y: Any) -> Any:
        """d_u (T, n R), None without adapters; by itself where no one asks for d_x."""
        if not self.adapters:
            return None
        d_u = torch.empty((len(d_y), self.rank * len(self.adapters)), dtype=d_y.dtype, device=d_y.device)
        for part, adapter in zip(d_u.split(self.rank, dim=-1), self.adapters, strict=True):
            torch.mm(d_y[:, adapter.columns], self._scaled_b(adapter, d_y), out=part)
        return d_u

    def parameter_gradients(self, d_y: Any, d_u: Any, x: Any, u: Any, seed: int) -> tuple[Any, ...]:
        """Gradients of `parameters`, in their order."""
        if not self.adapters:
            return ()
        d_a = lora.weight_gradient(d_u, x, self.rank, Dropout(p=self.dropout, seed=seed)).split(self.rank)
        found: list[Any] = []
        for place, (adapter, part) in enumerate(zip(self.adapters, u.split(self.rank, dim=-1), strict=True)):
            d_b = (d_y[:, adapter.columns].T @ part).to(adapter.b.dtype).mul_(self.scaling)
            found += (d_a[place].to(adapter.a.dtype), d_b)
        return tuple(found)

    def _joined_a(self, like: Any) -> Any:
        return torch.cat([adapter.a.detach() for adapter in self.adapters]).to(like.dtype)

    def _scaled_b(self, adapter: Adapter, like: Any) -> Any:
        return (adapter.b.detach() * self.scaling).to(like.dtype)
