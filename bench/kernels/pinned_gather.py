"""Rows of a matrix in the host's pinned memory, read by the GPU itself: nothing waits for the host.

    out[t] = matrix[numbers[t]]

Bytes moved: 2TH over PCIe, and 2TH written.
"""

from typing import Any

import torch

from bench.kernels.triton_compat import compiled, jit, power_of_two, tl


def rows_of(matrix: Any, numbers: Any) -> Any:
    """out (T, H), on the device of `numbers`. matrix: (V, H), pinned; numbers: int64 (T,), each below V."""
    if not compiled(numbers):
        return rows_of_reference(matrix, numbers)
    out = torch.empty((len(numbers), matrix.shape[1]), dtype=matrix.dtype, device=numbers.device)
    _pinned_rows[(len(numbers),)](
        matrix, numbers, out, matrix.shape[1], COLUMNS=power_of_two(matrix.shape[1]), num_warps=4
    )
    return out


def rows_of_reference(matrix: Any, numbers: Any) -> Any:
    return matrix[numbers.to(matrix.device)].to(numbers.device)


@jit
def _pinned_rows(matrix, numbers, out, width, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    there = column < width
    number = tl.load(numbers + row)
    tl.store(out + row * width + column, tl.load(matrix + number * width + column, mask=there), mask=there)
