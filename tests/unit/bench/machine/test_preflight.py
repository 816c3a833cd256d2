"""A GPU too old for what a trial computes in is refused before an hour is spent on numbers that say nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.machine import preflight
from bench.stack import Stack


class CudaLibrary:
    """bitsandbytes' library as it is where it can use the GPU."""

    compiled_with_cuda = True


def machine(capability: tuple[int, int]) -> Stack:
    cuda = SimpleNamespace(
        is_available=lambda: True, get_device_capability=lambda: capability, get_device_name=lambda: "Tesla T4"
    )
    torch: Any = SimpleNamespace(cuda=cuda, __version__="2.11.0", version=SimpleNamespace(cuda="13.0"))
    library: Any = SimpleNamespace(cextension=SimpleNamespace(lib=CudaLibrary()), __version__="0.50.2")
    nothing: Any = SimpleNamespace()
    return Stack(torch=torch, transformers=nothing, peft=nothing, bitsandbytes=library)


@pytest.mark.parametrize("kind", ["training", "inference", "loading", "distributed"])
def test_a_gpu_without_bf16_is_refused_by_its_name(make_trial, kind):
    with pytest.raises(InputError) as caught:
        preflight.check(machine((7, 5)), make_trial(kind=kind))
    said = str(caught.value)
    assert said.startswith("Tesla T4: compute capability 7.5 has no bf16, in which trials compute; take a GPU of 8.0 ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("capability", "kind"), [((7, 5), "hardware"), ((8, 0), "training"), ((8, 6), "training"), ((9, 0), "training")]
)
def test_chips_with_bf16_are_welcome_and_what_the_chip_itself_reaches_is_measured_on_any(make_trial, capability, kind):
    preflight.check(machine(capability), make_trial(kind=kind))
