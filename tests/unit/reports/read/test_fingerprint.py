"""What differs between the nodes of a run, and what only seems to."""

from dataclasses import replace

import pytest

from reports.read.fingerprint import hosts


def test_equal_gpus_are_one_condition_and_a_recipe_is_its_configurations_own(a10):
    _, run = a10
    found = hosts(run.record, run.results)
    assert found.differences == ()
    assert found.device == "NVIDIA A10"
    assert "gpu_uuid" not in found.common
    assert found.common["memory_total_bytes"].startswith("252")


@pytest.mark.parametrize(
    ("key", "value"),
    [("recipe", "stock"), ("recipe_notes", "triton is not installed"), ("memory_total_bytes", 126_000_000_000)],
)
def test_a_node_that_could_not_do_as_the_others_is_named(a10, key, value):
    _, run = a10
    results = [
        replace(result, fingerprint=result.fingerprint | {key: value})
        if result.worker == "gpu-node-2" and key in result.fingerprint
        else result
        for result in run.results
    ]
    (found,) = hosts(run.record, results).differences
    assert found.key == key
    assert found.where_by_value[str(value)] == ("gpu-node-2",)
