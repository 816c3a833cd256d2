"""Rows of a matrix in the host's pinned memory, read by the GPU without synchronization with the host.

    out[t] = matrix[indices[t]]

Bytes moved: 2TH over PCIe, and 2TH written.
"""

from typing import Any

import torch

from bench.kernels.triton_compat import jit, next_power_of_2, tl, uses_triton


def gather_rows(matrix: Any, indices: Any) -> Any:
    """Return out (T, H) on the device of `indices`. matrix: (V, H), pinned; indices: int64 (T,), each below V."""
    if not uses_triton(indices):
        return gather_rows_reference(matrix, indices)
    out = torch.empty((len(indices), matrix.shape[1]), dtype=matrix.dtype, device=indices.device)
    _pinned_gather_rows[(len(indices),)](
        matrix, indices, out, matrix.shape[1], COLUMNS=next_power_of_2(matrix.shape[1]), num_warps=4
    )
    return out


def gather_rows_reference(matrix: Any, indices: Any) -> Any:
    return matrix[indices.to(matrix.device)].to(indices.device)


@jit
def _pinned_gather_rows(matrix, indices, out, width, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    mask = column < width
    index = tl.load(indices + row)
    tl.store(out + row * width + column, tl.load(matrix + index * width + column, mask=mask), mask=mask)
