"""Cross entropy over a frozen output layer and its gradient, in chunks of tokens.

    logits = x W^T;  loss = -log softmax(logits)[target], the mean over all valid targets
    d_logits = (softmax(logits) - onehot(target)) / count;  d_x = d_logits W

x: (T, H), W: (V, H), targets: (T,), -100 for positions without a target. The full logits never exist: for 4096 tokens
and a vocabulary of 32,768 they would take 0.27 GB in bf16 and 0.54 GB more in float32, and their gradient as much
again. A chunk's logits are rounded to the model's dtype, as in the model itself, and overwritten by their gradient. W
is frozen, so backward is d_x times the incoming gradient.

Bytes moved in addition to the two products: 3 x 2TV.
"""

from typing import Any

import torch

from bench.kernels.triton_compat import jit, tl, uses_triton

IGNORED = -100
CHUNK_TOKENS = 512
COLUMNS = 4096


def head_loss(x: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """Return (loss, a float32 scalar on the device; d_x, which overwrites x). Without any target the loss is 0."""
    is_target = targets != IGNORED
    inverse_count = 1.0 / is_target.sum().clamp(min=1).float()
    losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        logits = x[part] @ weight.T
        cross_entropy_(logits, targets[part], inverse_count, losses[part])
        torch.mm(logits, weight, out=x[part])
        del logits  # before the next chunk is allocated
    return losses.sum() * inverse_count, x


def head_losses(x: Any, weight: Any, targets: Any) -> Any:
    """Return each token's loss, float32 (T,), 0 without target; no gradient."""
    losses = torch.zeros(len(x), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        losses[part] = token_losses(x[part] @ weight.T, targets[part])
    return losses


def token_losses(logits: Any, targets: Any) -> Any:
    """Return the loss of each row of logits (T, V), float32 (T,), 0 without target."""
    wide = logits.float()
    at_target = wide.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return (torch.logsumexp(wide, dim=-1) - at_target) * (targets != IGNORED)


def cross_entropy_(logits: Any, targets: Any, inverse_count: Any, losses: Any) -> None:
    """Overwrite `logits` (T, V) by the gradient of the mean loss, and `losses` (T,) by each token's loss."""
    if not uses_triton(logits):
        gradient, token_loss = cross_entropy_reference(logits, targets, inverse_count)
        logits.copy_(gradient)
        losses.copy_(token_loss)
        return
    tokens, vocabulary = logits.shape
    _loss_cross_entropy[(tokens,)](
        logits, targets, inverse_count, losses, vocabulary, IGNORED=IGNORED, COLUMNS=COLUMNS, num_warps=8
    )  # fmt: skip


def cross_entropy_reference(logits: Any, targets: Any, inverse_count: Any) -> tuple[Any, Any]:
    is_target = targets != IGNORED
    columns = targets.clamp(min=0)[:, None]
    wide = logits.float()
    total = torch.logsumexp(wide, dim=-1, keepdim=True)
    gradient = torch.exp(wide - total).scatter_add(1, columns, -torch.ones_like(total)) * inverse_count
    losses = (total - wide.gather(1, columns))[:, 0]
    return gradient * is_target[:, None], losses * is_target


@jit
def _loss_cross_entropy(
    logits, targets, inverse_count, losses, vocabulary, IGNORED: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * vocabulary
    target = tl.load(targets + row)
    is_target = target != IGNORED
    highest = tl.full((COLUMNS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for start in range(0, vocabulary, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(row_logits + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        new_highest = tl.maximum(highest, value)
        # A lane without a value so far stays at (-inf, 0): exp(-inf - -inf) would be NaN.
        has_value = new_highest > float("-inf")
        total = tl.where(has_value, total * tl.exp(highest - new_highest) + tl.exp(value - new_highest), 0.0)
        highest = new_highest
    top = tl.max(highest, axis=0)
    log_total = top + tl.log(tl.sum(tl.where(highest > float("-inf"), total * tl.exp(highest - top), 0.0), axis=0))
    at_target = tl.load(row_logits + target, mask=is_target, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(is_target, log_total - at_target, 0.0))
    scale = tl.where(is_target, tl.load(inverse_count), 0.0)
    tl.debug_barrier()  # all threads have read the row before any thread overwrites it
    for start in range(0, vocabulary, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(row_logits + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        gradient = (tl.exp(value - log_total) - tl.where(column == target, 1.0, 0.0)) * scale
        tl.store(row_logits + column, gradient.to(logits.dtype.element_ty), mask=column < vocabulary)
