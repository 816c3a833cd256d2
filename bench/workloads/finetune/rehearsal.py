"""The rehearsal before the first step: the heaviest row and, with several ranks, steps that exchange its gradients.

Only the last row's backward pass overlaps the exchange. So a step of any number of rows waits as long for it as a
rehearsed step of one row. Weights and the optimizer's state are not changed.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence

from bench.workloads.finetune.steps import GlobalStep, StepRow, least_waits, waited_percent
from bench.workloads.ranks.process import RankGroup

COMMUNICATION_GOAL_PERCENT = 2.0
EXCHANGES = 3


def rehearse_row(global_step: GlobalStep, row: StepRow) -> None:
    """Run a row until the next one runs at full speed; a graph is captured in the second micro-batch of a shape."""
    step = global_step.step
    for _ in range(1 + step.may_capture):
        step.clock.begin()
        step.forward_backward(step.inputs(row.batch), 1.0)
    global_step.gradients.clear()
    step.synchronize()


def rehearse_exchange(
    global_step: GlobalStep, group: RankGroup, row: StepRow
) -> tuple[float, list[tuple[float, float]]]:
    """Measure exchanges of all gradients without overlap, and steps of one row.

    Return the seconds of an exchange, the fastest of the slowest rank, and the (waited, whole) seconds of each step.
    """
    gradients = global_step.gradients

    def timed(run: Callable[[], None]) -> float:
        group.barrier()
        start = time.perf_counter()
        run()
        global_step.step.synchronize()
        return time.perf_counter() - start

    def send() -> None:
        gradients.clear()
        gradients.finish(global_step.scalars)

    send_sec = min(timed(send) for _ in range(EXCHANGES))
    steps = []
    for _ in range(EXCHANGES):
        step_sec = timed(lambda: global_step.forward_backward(0, [row], row.targets))
        steps.append((gradients.waited_sec(), step_sec))
    gradients.clear()
    global_step.step.synchronize()
    return max(group.gather_objects(send_sec)), least_waits(group.gather_objects(steps))


def predict_communication(steps: Sequence[tuple[float, float]], rows: int) -> tuple[float, int]:
    """Predict the percentage of a step of `rows` rows spent waiting for gradients, and the rows to reach the goal.

    The goal is COMMUNICATION_GOAL_PERCENT; rows are those of one rank. `steps` are of one row: (waited, whole) seconds.
    """
    row_sec = statistics.median(whole - waited for waited, whole in steps)
    wait_sec = statistics.median(waited for waited, _ in steps)
    goal = COMMUNICATION_GOAL_PERCENT / 100.0
    enough_rows = math.ceil(wait_sec * (1.0 - goal) / (goal * row_sec))
    percent = waited_percent([(waited, whole + (rows - 1) * row_sec) for waited, whole in steps])
    return percent, max(rows, enough_rows)
