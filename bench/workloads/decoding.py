"""Greedy decoding on two paths, with times for the first token and for all later ones.

`DefaultPath` is `model.generate` with its growing cache. `FastPath` keeps keys and values at fixed addresses and
replays a captured CUDA graph: the host launches one graph per token instead of every kernel of every layer. This module
captures the graph itself because transformers does not compile models quantized by bitsandbytes, and a capture needs no
compiler. Its step is `bench.workloads.decode_step`. Without capture the same loop runs anywhere. Both paths give the
same tokens, up to rounding.

Not covered: sampling; here, sequences of different lengths and ends before the last token, for which
`bench.workloads.finetune.answers` extends `FastPath`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.qlora.step import Placement
from bench.torch_stack import DeviceClock, Stack

# Attention kernels with a mask need aligned rows.
LENGTH_MULTIPLE = 8
WARMUPS_BEFORE_CAPTURE = 3  # as in PyTorch's notes on CUDA graphs: lazy initializations must be over


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One batch's new tokens, int64 of shape (batch, new_tokens), with times since the prompt's arrival.

    `decode_sec` is the time from the first token to the last, None if there is only one.
    """

    tokens: Any
    time_to_first_token_sec: float
    decode_sec: float | None


def prepare_model(stack: Stack, model: Any) -> None:
    """Configure a base model for greedy generation with its cache, up to the maximum number of tokens."""
    model.eval()
    model.config.use_cache = True
    # Without an end-of-sequence token nothing stops early; min_new_tokens would change logits.
    model.generation_config = stack.transformers.GenerationConfig(
        do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
    )


class DefaultPath:
    """`model.generate`: the library's own loop. `prompts` is int64 of shape (batch, prompt_tokens), on the device."""

    name = "default"

    def __init__(self, stack: Stack, model: Any, placement: Placement, prompts: Any, new_tokens: int) -> None:
        self._stack, self._model, self._placement = stack, model, placement
        self._prompts, self._new_tokens = prompts, new_tokens
        self._attention_mask = stack.torch.ones_like(prompts)

    def generate(self) -> Generated:
        clock = DeviceClock(self._stack.torch, is_cuda=self._placement.is_cuda)
        clock.synchronize()
        stamps = [clock.stamp()]
        criterion = self._make_criterion(lambda: stamps.append(clock.stamp()))
        ids = self._model.generate(
            self._prompts,
            attention_mask=self._attention_mask,
            max_new_tokens=self._new_tokens,
            stopping_criteria=self._stack.transformers.StoppingCriteriaList([criterion]),
        )
        seconds = [clock.seconds(stamps[0], stamp) for stamp in stamps]
        tokens = ids[:, self._prompts.shape[1] :]
        if tokens.shape[1] != self._new_tokens or len(seconds) != self._new_tokens + 1:
            raise RuntimeError(f"generate returned {tokens.shape[1]} tokens in {len(seconds) - 1} steps")
        return Generated(
            tokens=tokens,
            time_to_first_token_sec=seconds[1],
            decode_sec=seconds[-1] - seconds[1] if self._new_tokens > 1 else None,
        )

    def _make_criterion(self, on_token: Callable[[], None]) -> Any:
        """Make a stopping criterion that calls `on_token` after every token and never stops."""
        never_stop = self._stack.torch.zeros(
            len(self._prompts), dtype=self._stack.torch.bool, device=self._prompts.device
        )

        def criterion(_ids: Any, _scores: Any, **_more: Any) -> Any:
            on_token()
            return never_stop

        return criterion


class FastPath:
    """Decoding with a static cache, and with a step captured as a CUDA graph if `capture`.

    All state is at three fixed addresses: `_ids` (prompt and answer), `_position` (of its last token) and the cache. A
    step reads and writes nothing else, so a replay of its graph is a step. `not_fused_reason` says why the step is not
    the one of five kernels a layer (`bench.workloads.decode_step.FusedStep`); None if it is.
    """

    name = "fast"

    def __init__(
        self, stack: Stack, model: Any, placement: Placement, prompts: Any, new_tokens: int, *, capture: bool
    ) -> None:
        torch = stack.torch
        self._stack, self._placement = stack, placement
        self._decoder, self._head = model.base_model, model.get_output_embeddings()
        self._prompts, self._new_tokens = prompts, new_tokens
        batch, prompt_tokens = prompts.shape
        length = -(-(prompt_tokens + new_tokens) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        device, dtype = prompts.device, self._head.weight.dtype
        self._cache = stack.static_cache(model.config, batch=batch, length=length, device=device, dtype=dtype)
        self._ids = torch.zeros((batch, length), dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._columns = torch.arange(length, device=device)
        with torch.no_grad():
            self._reset()
            self._prefill()  # some transformers versions allocate the cache at first use
            # This import loads torch, which must happen after the stack's settings.
            step_module = importlib.import_module("bench.workloads.decode_step")
            self._decode, self.not_fused_reason = step_module.make_step(
                stack, self._decoder, self._cache, batch=batch, length=length
            )
        self._graph: Any = None
        if capture:
            self._capture()

    def begin(self) -> None:
        """Process the prompts and write the first token of each answer."""
        with self._stack.torch.no_grad():
            self._reset()
            self._prefill()

    def step(self) -> None:
        """Write one more token of each answer; call it at most `new_tokens` - 1 times."""
        if self._graph is not None:
            self._graph.replay()
            return
        with self._stack.torch.no_grad():
            self._step()

    def generate(self) -> Generated:
        with self._stack.torch.no_grad():
            self._reset()
            clock = DeviceClock(self._stack.torch, is_cuda=self._placement.is_cuda)
            clock.synchronize()
            start = clock.stamp()
            self._prefill()
            first = clock.stamp()
            for _ in range(self._new_tokens - 1):
                self.step()
            last = clock.stamp()
            seconds = clock.seconds(first, last)
        prompt_tokens = self._prompts.shape[1]
        return Generated(
            tokens=self._ids[:, prompt_tokens : prompt_tokens + self._new_tokens].clone(),
            time_to_first_token_sec=clock.seconds(start, first),
            decode_sec=seconds if self._new_tokens > 1 else None,
        )

    def _reset(self) -> None:
        self._cache.reset()
        self._position.zero_()
        self._ids[:, : self._prompts.shape[1]] = self._prompts

    def _prefill(self) -> None:
        """Process the whole prompt at once and write the first token after it."""
        prompt_tokens = self._prompts.shape[1]
        positions = self._columns[:prompt_tokens]
        # Decoder and head are called separately, to compute only the last position's logits in every version.
        states = self._decoder(
            input_ids=self._prompts,
            attention_mask=None,
            past_key_values=self._cache,
            use_cache=True,
            **self._stack.position_arguments(self._decoder, positions),
        ).last_hidden_state
        self._write_next_token(states[:, -1], positions[-1:])
        self._position.fill_(prompt_tokens)

    def _step(self) -> None:
        """Write one more token. Reads nothing back to the host, so that it can be captured."""
        tokens = self._ids.index_select(1, self._position)[:, 0]
        self._write_next_token(self._decode(tokens, self._position), self._position)
        self._position.add_(1)

    def _write_next_token(self, states: Any, position: Any) -> None:
        """Write the token that follows `states` (batch, hidden) at `position`."""
        tokens = self._head(states).argmax(dim=-1, keepdim=True)
        self._ids.index_copy_(1, position + 1, tokens)

    def _capture(self) -> None:
        torch = self._stack.torch
        with torch.no_grad():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                for _ in range(WARMUPS_BEFORE_CAPTURE):
                    self._reset()
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            self._reset()
            # thread_local: another thread, of a checkpoint or of NCCL, may use CUDA during the capture.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._step()
        self._graph = graph
