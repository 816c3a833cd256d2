"""Cross entropy over a frozen output layer, in chunks of tokens, together with its gradient.

    logits = x W^T;  loss = -log softmax(logits)[target], the mean over the targets that count
    d_logits = (softmax(logits) - onehot(target)) / count;  d_x = d_logits W

x: (T, H), W: (V, H), targets: (T,), -100 where nothing is predicted. The full logits never exist: for 4096 tokens and
32,768 words they would take 0.27 GB in bf16 and 0.54 GB more in float32, and their gradient as much again. A chunk's
logits are rounded to the model's dtype, as in the model itself, and are overwritten by their gradient. W is frozen, so
backward is d_x times the incoming gradient.

Bytes moved beside the two products: 3 x 2TV.
"""

from typing import Any

import torch

from bench.kernels.triton_compat import compiled, jit, tl

IGNORED = -100
CHUNK_TOKENS = 512
COLUMNS = 4096


def head_loss(x: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """(loss, a float32 scalar on the device; d_x, written over x). Without any target the loss is 0."""
    counted = targets != IGNORED
    share = 1.0 / counted.sum().clamp(min=1).float()
    losses = torch.empty(len(x), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        logits = x[part] @ weight.T
        cross_entropy_(logits, targets[part], share, losses[part])
        torch.mm(logits, weight, out=x[part])
        del logits  # before the next ones are made
    return losses.sum() * share, x


def head_losses(x: Any, weight: Any, targets: Any) -> Any:
    """Each token's loss, float32 (T,), 0 without target; no gradient."""
    losses = torch.zeros(len(x), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        losses[part] = token_losses(x[part] @ weight.T, targets[part])
    return losses


def token_losses(logits: Any, targets: Any) -> Any:
    """The loss of each row of logits (T, V), float32 (T,), 0 without target."""
    wide = logits.float()
    at_target = wide.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return (torch.logsumexp(wide, dim=-1) - at_target) * (targets != IGNORED)


def cross_entropy_(logits: Any, targets: Any, share: Any, losses: Any) -> None:
    """Overwrite `logits` (T, V) by the mean's gradient, and `losses` (T,) by each token's loss, 0 without target."""
    if not compiled(logits):
        gradient, found = cross_entropy_reference(logits, targets, share)
        logits.copy_(gradient)
        losses.copy_(found)
        return
    tokens, words = logits.shape
    _cross_entropy[(tokens,)](
        logits, targets, share, losses, words, IGNORED=IGNORED, COLUMNS=COLUMNS, num_warps=8
    )  # fmt: skip


def cross_entropy_reference(logits: Any, targets: Any, share: Any) -> tuple[Any, Any]:
    counted = targets != IGNORED
    words = targets.clamp(min=0)[:, None]
    wide = logits.float()
    total = torch.logsumexp(wide, dim=-1, keepdim=True)
    gradient = torch.exp(wide - total).scatter_add(1, words, -torch.ones_like(total)) * share
    losses = (total - wide.gather(1, words))[:, 0]
    return gradient * counted[:, None], losses * counted


@jit
def _cross_entropy(logits, targets, share, losses, words, IGNORED: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    line = logits + row * words
    target = tl.load(targets + row)
    counts = target != IGNORED
    highest = tl.full((COLUMNS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for start in range(0, words, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(line + column, mask=column < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, value)
        # A lane that has seen no number yet stays at (-inf, 0): exp(-inf - -inf) would be no number.
        seen = higher > float("-inf")
        total = tl.where(seen, total * tl.exp(highest - higher) + tl.exp(value - higher), 0.0)
        highest = higher
    top = tl.max(highest, axis=0)
    log_total = top + tl.log(tl.sum(tl.where(highest > float("-inf"), total * tl.exp(highest - top), 0.0), axis=0))
    at_target = tl.load(line + target, mask=counts, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(counts, log_total - at_target, 0.0))
    scale = tl.where(counts, tl.load(share), 0.0)
    tl.debug_barrier()  # every thread has read its row before any overwrites it
    for start in range(0, words, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(line + column, mask=column < words, other=float("-inf")).to(tl.float32)
        gradient = (tl.exp(value - log_total) - tl.where(column == target, 1.0, 0.0)) * scale
        tl.store(line + column, gradient.to(logits.dtype.element_ty), mask=column < words)
