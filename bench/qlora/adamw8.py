"""bitsandbytes' 8-bit AdamW with one kernel launch for all parameters instead of one launch and one wait for each."""

from collections.abc import Sequence
from typing import Any

from bench.kernels.adamw8 import Codebook, Moments, TensorTable, Update, update_
from bench.torch_stack import Stack


def multi_tensor_adamw8bit(stack: Stack, groups: Sequence[dict[str, Any]]) -> Any:
    """Make the optimizer. Its state has bitsandbytes' names and format, so it reads checkpoints of either."""

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
                    updates[number](self, group)

    updates = [_GroupUpdate(number) for number in range(len(groups))]
    return MultiTensorAdamW8bit(groups)


class _GroupUpdate:
    """The update of one parameter group, with its table of addresses."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._table: TensorTable | None = None
        self._codebook: Codebook | None = None

    def __call__(self, optimizer: Any, group: dict[str, Any]) -> None:
        parameters = self._prepare(optimizer, group)
        if not parameters:
            return
        states = [optimizer.state[parameter] for parameter in parameters]
        for state in states:
            state["step"] += 1
        if self._codebook is None:
            self._codebook = Codebook.from_values(states[0]["qmap1"], states[0]["qmap2"])
        tensors = [
            (parameter, parameter.grad, _moments(state)) for parameter, state in zip(parameters, states, strict=True)
        ]
        if self._table is None or self._table.key != TensorTable.addresses_of(tensors):
            self._table = TensorTable(tensors)
        rates = {name: group[name] for name in ("betas", "eps", "weight_decay")}
        update_(self._table, self._codebook, Update(lr=float(group["lr"]), step=states[0]["step"], **rates))

    def _prepare(self, optimizer: Any, group: dict[str, Any]) -> list[Any]:
        """Return the parameters with 8-bit state. bitsandbytes itself updates those whose state has 32 bits."""
        parameters = []
        for index, parameter in enumerate(group["params"]):
            if parameter.grad is None:
                continue
            if not optimizer.state[parameter]:
                optimizer.init_state(group, parameter, self._number, index)
            if "absmax1" in optimizer.state[parameter]:
                parameters.append(parameter)
            else:
                optimizer.update_step(group, parameter, self._number, index)
        return parameters


def _moments(state: dict[str, Any]) -> Moments:
    return Moments(codes_m=state["state1"], codes_v=state["state2"], max_m=state["absmax1"], max_v=state["absmax2"])
