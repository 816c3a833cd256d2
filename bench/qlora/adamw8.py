"""bitsandbytes' 8-bit AdamW with one kernel launch for all parameters instead of one launch and one wait for each."""

from collections.abc import Sequence
from typing import Any

from bench.kernels.adamw8 import TensorTable, codebook, update_
from bench.torch_stack import Stack

STATE = ("state1", "state2", "absmax1", "absmax2")  # bitsandbytes' names: codes and largest magnitudes of m and v


def multi_tensor_adamw8bit(stack: Stack, groups: Sequence[dict[str, Any]]) -> Any:
    """Make the optimizer. Its state has bitsandbytes' names and format, so it reads checkpoints of either."""
    tables: dict[int, TensorTable] = {}  # by parameter group
    codes: dict[int, tuple[Any, ...]] = {}

    class MultiTensorAdamW8bit(stack.bitsandbytes.optim.AdamW8bit):  # type: ignore[misc, name-defined]
        """One launch for each parameter group."""

        initialized: bool

        def step(self, closure: Any = None) -> None:
            """Update every parameter that has a gradient. Raises ValueError for a closure."""
            if closure is not None:
                raise ValueError("a closure is not supported")
            if not self.initialized:
                self.check_overrides()
                self.to_gpu()
                self.initialized = True
            with stack.torch.no_grad():
                for number, group in enumerate(self.param_groups):
                    if parameters := _prepare(self, number, group):
                        self._update(number, group, parameters)

        def _update(self, number: int, group: dict[str, Any], parameters: list[Any]) -> None:
            states = [self.state[parameter] for parameter in parameters]
            for state in states:
                state["step"] += 1
            tensors = [
                (parameter, parameter.grad, *(state[name] for name in STATE))
                for parameter, state in zip(parameters, states, strict=True)
            ]
            if number not in codes:
                codes[number] = codebook(states[0]["qmap1"], states[0]["qmap2"])
            if number not in tables or tables[number].key != TensorTable.addresses_of(tensors):
                tables[number] = TensorTable(tensors)
            rates = {name: group[name] for name in ("betas", "eps", "weight_decay")}
            update_(tables[number], codes[number], step=states[0]["step"], lr=float(group["lr"]), **rates)

    return MultiTensorAdamW8bit(groups)


def _prepare(optimizer: Any, number: int, group: dict[str, Any]) -> list[Any]:
    """Return the group's parameters with 8-bit state. bitsandbytes itself updates those whose state has 32 bits."""
    parameters = []
    for index, parameter in enumerate(group["params"]):
        if parameter.grad is None:
            continue
        if not optimizer.state[parameter]:
            optimizer.init_state(group, parameter, number, index)
        if STATE[-1] in optimizer.state[parameter]:
            parameters.append(parameter)
        else:
            optimizer.update_step(group, parameter, number, index)
    return parameters
