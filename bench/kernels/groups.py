"""Products of rows grouped by expert, and the sum of the rows that k experts made of each token.

    choices   each of T tokens has k experts: S = T k choices, sorted by expert into the groups
    product   out[s] = rows[s] weights[expert of s]
    combine   out[t] = sum over j of scores[t, j] * rows[places[t k + j]], in this order

Bytes moved by `combine`: 2SH in, 2TH out. The library's `index_add_` adds atomically, in another order each time.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import ceil_div, jit, tl, uses_triton

ALIGNMENT = 8  # numbers in 16 bits: the library's grouped product needs rows of a multiple of 16 bytes
COLUMNS = 1024


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Choices sorted by expert: the choice, token and expert of each row, and the row of each choice; all (S,).

    `ends` (E,) int32 are the groups' ends; `choices` is k.
    """

    order: Any
    tokens: Any
    experts: Any
    places: Any
    ends: Any
    choices: int

    @classmethod
    def sort(cls, ids: Any, experts: int) -> "Groups":
        """Sort each token's experts (T, k)."""
        sorted_ids, order = torch.sort(ids.reshape(-1), stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        numbers = torch.arange(experts, device=ids.device, dtype=ids.dtype)
        ends = torch.searchsorted(sorted_ids, numbers, right=True, out_int32=True)
        choices = ids.shape[-1]
        return cls(
            order=order, tokens=order // choices, experts=sorted_ids, places=places, ends=ends, choices=choices
        )  # fmt: skip


def grouped_product(rows: Any, weights: Any, ends: Any) -> Any:
    """Return (S, output) of rows (S, input) in groups that end at `ends`, and weights (E, input, output)."""
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    is_aligned = not any(size % ALIGNMENT for size in weights.shape[1:])
    if rows.is_cuda and rows.dtype == torch.bfloat16 and is_aligned and grouped is not None:
        return grouped(rows, weights, offs=ends)
    out, begin = rows.new_empty(len(rows), weights.shape[2]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        if end > begin:
            out[begin:end] = rows[begin:end] @ weight
        begin = end
    return out


def combine(rows: Any, groups: Groups, scores: Any = None) -> Any:
    """Return (T, H) of rows (S, H) and scores (T, k), None for ones; in the dtype of `rows`."""
    tokens, width = len(groups.places) // groups.choices, rows.shape[1]
    if not uses_triton(rows):
        return combine_reference(rows, groups, scores)
    out = torch.empty((tokens, width), dtype=rows.dtype, device=rows.device)
    _combine[(tokens, ceil_div(width, COLUMNS))](
        rows, groups.places, rows if scores is None else scores.contiguous(), out, width, CHOICES=groups.choices,
        HAS_SCORES=scores is not None, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return out


def combine_reference(rows: Any, groups: Groups, scores: Any = None) -> Any:
    parts = rows[groups.places].float().view(-1, groups.choices, rows.shape[1])
    return (parts if scores is None else parts * scores.float()[:, :, None]).sum(1).to(rows.dtype)


@jit
def _combine(
    rows, places, scores, out, width, CHOICES: tl.constexpr, HAS_SCORES: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < width
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for choice in tl.static_range(CHOICES):
        row = tl.load(places + token * CHOICES + choice)
        part = tl.load(rows + row * width + column, mask=mask, other=0.0).to(tl.float32)
        if HAS_SCORES:
            part *= tl.load(scores + token * CHOICES + choice).to(tl.float32)
        total += part
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=mask)
