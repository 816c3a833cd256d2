"""The program of each rank of a distributed trial: the training step under DDP.

Started as `python -m bench.workloads.distributed_rank FOLDER BACKEND SILENCE_SEC STEP_SEC`. Each rank trains on every
n-th chat, in an order set by the seed; all ranks load the same base weights from files, so only adapters and their
gradients are exchanged.

A check at the end verifies that the ranks have trained one model. Not covered: sharded models.
"""

import hashlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.collate import make_batches, make_rows
from bench.data.readers import read_data
from bench.data.tokenizer import load_trial_tokenizer
from bench.harness import termination
from bench.workloads.ranks.process import RankProcess, main


class PeriodicSyncModel:
    """A DDP model that exchanges gradients only in every `every`-th call, a step's last one."""

    def __init__(self, ddp: Any, every: int) -> None:
        self._ddp, self._every, self._calls = ddp, every, 0

    def parameters(self) -> Iterator[Any]:
        yield from self._ddp.parameters()

    def __call__(self, **inputs: Any) -> Any:
        self._calls += 1
        # The attribute that DDP.no_sync() sets; it also applies to this call's backward pass.
        self._ddp.require_backward_grad_sync = self._calls % self._every == 0
        return self._ddp(**inputs)


class DistributedRank(RankProcess):
    """One rank of a distributed trial, from loading the model to the comparison of the ranks' weights."""

    def run(self) -> None:
        """Run the trial. Raises the stack's errors, NonFiniteLoss, RanksDiffer and InputError."""
        with self.phase("import"):
            self.modules = torch_stack.load()
            self.torch = self.modules.torch
            self.select_device()
            self.group = self.init_process_group(self.step_sec)
        with self.phase("data"):
            self._open_data()
        with self.phase("load"):
            self._load_model()
            self.group.barrier()  # ranks load at different speeds: wait here instead of inside a step
        trial = self.trial
        with self.phase("warmup"):
            for number in range(1, trial.warmup_steps + 1):
                self._run_step(number)
        with self.phase("measure"):
            for number in range(1, trial.measured_steps + 1):
                self._run_step(number)
        with self.phase("exchange"):
            self._compare_weights()
            self.report_peaks(self.group)
        self.destroy_process_group()

    # Setup ----------------------------------------------------------------------------------------------------

    def _open_data(self) -> None:
        trial, (_, conversations) = self.trial, read_data(Path(self.trial.data), self.trial.reading)
        tokenizer = load_trial_tokenizer(trial)
        rows = make_rows(trial, conversations[self.rank :: self.world_size], tokenizer)
        self.batches = make_batches(self.modules, trial, rows, tokenizer, pin_memory=self.placement.is_cuda)

    def _load_model(self) -> None:
        trial, torch = self.trial, self.torch
        step = self.build_step()
        model = step.model
        torch.manual_seed(trial.seed + self.rank)  # equal adapters, different dropout
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.report_step(step, f"rank 0 loaded the model; {step.trained_parameters:,} trained parameters")
        parallel = torch.nn.parallel.DistributedDataParallel
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        # The frozen weights come from the same files on every rank: no need to broadcast 4 GB of them.
        parallel._set_params_and_buffers_to_ignore_for_model(
            model, frozen + [name for name, _ in model.named_buffers()]
        )
        # Not static_graph: it does not support calls without exchange, and checkpointing here does not need it.
        ddp = parallel(model, broadcast_buffers=False, find_unused_parameters=False, gradient_as_bucket_view=True)
        step.may_capture = False  # DDP exchanges gradients while backward runs
        step.model = PeriodicSyncModel(ddp, trial.gradient_accumulation_steps)
        self.step = step

    # Steps ------------------------------------------------------------------------------------------------------------

    def _run_step(self, number: int) -> None:
        """Run one step, timed from when every rank is ready; report every rank's row in one line."""
        self.step.synchronize()
        self.heartbeat.update(self.heartbeat.phase, number, waiting=True)
        self.group.barrier()
        self.heartbeat.update(self.heartbeat.phase, number)
        seconds, total, used = self.step.run_timed(self.batches, self.trial.gradient_accumulation_steps)
        self.heartbeat.update(self.heartbeat.phase, number, waiting=True)
        counts = [sum(b.samples for b in used), sum(b.tokens for b in used), sum(b.useful_tokens for b in used)]
        table = self.group.gather_objects([seconds, float(total), *map(float, counts)])
        self.report(step={"phase": self.heartbeat.phase, "table": table})
        for rank, row in enumerate(table):
            if not math.isfinite(row[1]):
                raise termination.NonFiniteLoss(
                    f"the loss of rank {rank} is {row[1]} at {self.heartbeat.phase} step {number}"
                )

    # Between ranks ----------------------------------------------------------------------------------------------------

    def _compare_weights(self) -> None:
        digest = hashlib.sha256()
        for parameter in self.trained:
            digest.update(parameter.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes())
        self.group.check_equal(digest.hexdigest(), "weights")


if __name__ == "__main__":
    main(sys.argv[1:], DistributedRank)
