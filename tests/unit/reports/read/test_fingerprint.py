"""What differs between the nodes of a run, and what only seems to."""

from dataclasses import replace

import pytest

from reports.read.fingerprint import hosts
from reports.read.load import load
from tests.support.reports import showcase


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Every trial on two equal nodes, each with a GPU of its own."""
    folder = tmp_path_factory.mktemp("a10")
    showcase.write(folder, workers=2, machine=showcase.A10)
    return load(folder)


def test_equal_gpus_are_one_condition_and_a_recipe_is_its_configurations_own(run):
    found = hosts(run.record, run.results)
    assert found.differences == ()
    assert found.device == "NVIDIA A10"
    assert "gpu_uuid" not in found.common
    assert found.common["memory_total_bytes"].startswith("252")


@pytest.mark.parametrize(
    ("key", "value"),
    [("recipe", "stock"), ("recipe_notes", "triton is not installed"), ("memory_total_bytes", 126_000_000_000)],
)
def test_a_node_that_could_not_do_as_the_others_is_named(run, key, value):
    results = [
        replace(one, fingerprint=one.fingerprint | {key: value})
        if one.worker == "gpu-node-2" and key in one.fingerprint
        else one
        for one in run.results
    ]
    (found,) = hosts(run.record, results).differences
    assert found.key == key
    assert found.where_by_value[str(value)] == ("gpu-node-2",)
