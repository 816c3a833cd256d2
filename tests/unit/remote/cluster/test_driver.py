"""Which drivers an image starts on, from what its base says."""

import pytest

from remote.cluster.diagnosis.driver import Drivers, drivers
from tests.unit.remote.cluster.test_nodes import causes, need, report

BRANDS = ("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx", "vapps", "vpc", "vcs", "vws")
# As nvidia/cuda:12.8.1-base-ubuntu24.04 has it; the order of its words.
CUDA_12_8 = " ".join(
    ("cuda>=12.8", *(f"brand={brand},driver>={n},driver<{n + 1}" for n in (535, 550, 560, 565) for brand in BRANDS))
)


def test_the_base_of_the_profile_starts_on_570_and_four_older_branches() -> None:
    found = drivers(CUDA_12_8)
    assert found == Drivers(since=570, also=(535, 550, 560, 565))
    assert str(found) == "570 or newer, or of 535, 550, 560, 565"
    assert [branch for branch in (525, 530, 535, 545, 550, 555, 560, 565, 570, 580) if not found.fits(branch)] == [
        *(525, 530, 545, 555)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda>=13.0", Drivers(since=580)),
        ("cuda>=12.1 brand=tesla,driver>=450,driver<451", Drivers(since=530, also=(450,))),
        ("cuda>=12.8 driver>=600,driver<602", Drivers(since=570)),
        ("cuda>=99.0", None),
        ("", None),
        ("nonsense cuda>=", None),
        ("driver>=535,driver<536", None),
    ],
)
def test_other_requirements(text: str, expected: Drivers | None) -> None:
    assert drivers(text) == expected


def test_a_hostile_requirement_takes_no_time() -> None:
    assert drivers("cuda>=12.8 driver>=0,driver<999999999999999999") == Drivers(since=570)


@pytest.mark.parametrize(("driver", "fits"), [("525.60.13", False), ("535.183.01", True), ("570.86.15", True)])
def test_a_node_is_held_against_what_the_image_asks_for(driver: str, fits: bool) -> None:
    labels = {"node.kubernetes.io/instance-type": "VM.GPU.A10.1", "nvidia.com/cuda.driver-version.full": driver}
    asked = drivers(CUDA_12_8)
    assert asked is not None
    assert ("driver" in causes(report(needs=need(drivers=asked), metadata__labels=labels))) is not fits
