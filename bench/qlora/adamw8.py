"""bitsandbytes' 8-bit AdamW with one kernel launch for all parameters instead of one launch and one wait for each."""

from typing import Any

from bench.kernels.adamw8 import TensorTable, codebook, update_
from bench.torch_stack import Stack

STATE = ("state1", "state2", "absmax1", "absmax2")  # bitsandbytes' names: codes and largest magnitudes of m and v


def multi_tensor_adamw8bit(stack: Stack, parameter_group: dict[str, Any]) -> Any:
    """Make the optimizer of one group. Its state has bitsandbytes' names and format: it reads checkpoints of either."""

    class MultiTensorAdamW8bit(stack.bitsandbytes.optim.AdamW8bit):  # type: ignore[misc, name-defined]
        """One launch for the parameters with 8-bit state. bitsandbytes itself updates those of 32 bits."""

        initialized: bool
        table: TensorTable | None = None
        codes: tuple[Any, ...] = ()

        def step(self, closure: Any = None) -> None:
            """Update every parameter that has a gradient. Raises ValueError for a closure."""
            if closure is not None:
                raise ValueError("a closure is not supported")
            if not self.initialized:
                self.check_overrides()
                self.to_gpu()
                self.initialized = True
            with stack.torch.no_grad():
                (group,) = self.param_groups
                parameters = [each for each in enumerate(group["params"]) if each[1].grad is not None]
                for index, parameter in parameters:
                    if not self.state[parameter]:
                        self.init_state(group, parameter, 0, index)
                    if STATE[-1] not in self.state[parameter]:
                        self.update_step(group, parameter, 0, index)
                in_8_bits = [parameter for _, parameter in parameters if STATE[-1] in self.state[parameter]]
                if in_8_bits:
                    self._update(group, in_8_bits)

        def _update(self, group: dict[str, Any], parameters: list[Any]) -> None:
            states = [self.state[parameter] for parameter in parameters]
            for state in states:
                state["step"] += 1
            tensors = [
                (parameter, parameter.grad, *(state[name] for name in STATE))
                for parameter, state in zip(parameters, states, strict=True)
            ]
            self.codes = self.codes or codebook(states[0]["qmap1"], states[0]["qmap2"])
            if self.table is None or self.table.key != TensorTable.addresses_of(tensors):
                self.table = TensorTable(tensors)
            rates = {name: group[name] for name in ("betas", "eps", "weight_decay")}
            update_(self.table, self.codes, step=states[0]["step"], lr=float(group["lr"]), **rates)

    return MultiTensorAdamW8bit([parameter_group])
