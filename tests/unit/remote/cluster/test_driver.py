"""Tests of the driver branches that an image supports."""

import pytest

from remote.cluster.diagnosis.driver import DriverRange, parse_drivers
from tests.unit.remote.cluster.test_nodes import causes, need, report

BRANDS = ("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx", "vapps", "vpc", "vcs", "vws")
# Value of nvidia/cuda:12.8.1-base-ubuntu24.04.
CUDA_12_8 = " ".join(
    ("cuda>=12.8", *(f"brand={brand},driver>={n},driver<{n + 1}" for n in (535, 550, 560, 565) for brand in BRANDS))
)


def test_the_base_of_the_profile_starts_on_570_and_four_older_branches() -> None:
    drivers = parse_drivers(CUDA_12_8)
    assert drivers == DriverRange(minimum=570, older=(535, 550, 560, 565))
    assert str(drivers) == "570 or newer, or of 535, 550, 560, 565"
    assert [branch for branch in (525, 530, 535, 545, 550, 555, 560, 565, 570, 580) if not drivers.fits(branch)] == [
        *(525, 530, 545, 555)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda>=13.0", DriverRange(minimum=580)),
        ("cuda>=12.1 brand=tesla,driver>=450,driver<451", DriverRange(minimum=530, older=(450,))),
        ("cuda>=12.8 driver>=600,driver<602", DriverRange(minimum=570)),
        ("cuda>=99.0", None),
        ("", None),
        ("nonsense cuda>=", None),
        ("driver>=535,driver<536", None),
    ],
)
def test_other_requirements(text: str, expected: DriverRange | None) -> None:
    assert parse_drivers(text) == expected


def test_a_hostile_requirement_takes_no_time() -> None:
    assert parse_drivers("cuda>=12.8 driver>=0,driver<999999999999999999") == DriverRange(minimum=570)


@pytest.mark.parametrize(("driver", "fits"), [("525.60.13", False), ("535.183.01", True), ("570.86.15", True)])
def test_a_nodes_driver_is_checked_against_the_images_requirement(driver: str, fits: bool) -> None:
    labels = {"node.kubernetes.io/instance-type": "VM.GPU.A10.1", "nvidia.com/cuda.driver-version.full": driver}
    required_drivers = parse_drivers(CUDA_12_8)
    assert required_drivers is not None
    assert ("driver" in causes(report(needs=need(drivers=required_drivers), metadata__labels=labels))) is not fits
