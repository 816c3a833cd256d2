"""Differences between the nodes of a run, and facts that are not differences."""

from dataclasses import replace

import pytest

from reports.read.worker_fingerprints import describe_hosts


def test_equal_gpus_are_one_condition_and_recipes_may_differ_between_configurations(a10):
    _, run = a10
    hosts = describe_hosts(run.record, run.results)
    assert hosts.differences == ()
    assert hosts.device == "NVIDIA A10"
    assert "gpu_uuid" not in hosts.common
    assert hosts.common["memory_total_bytes"].startswith("252")


@pytest.mark.parametrize(
    ("key", "value"),
    [("recipe", "stock"), ("recipe_notes", "triton is not installed"), ("memory_total_bytes", 126_000_000_000)],
)
def test_a_node_that_differs_from_the_others_is_named(a10, key, value):
    _, run = a10
    results = [
        replace(result, fingerprint=result.fingerprint | {key: value})
        if result.worker == "gpu-node-2" and key in result.fingerprint
        else result
        for result in run.results
        if not result.trial.is_usual  # its recipe is another one
    ]
    (difference,) = describe_hosts(run.record, results).differences
    assert difference.key == key
    assert difference.where_by_value[str(value)] == ("gpu-node-2",)
