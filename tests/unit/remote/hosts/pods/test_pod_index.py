"""Tests of the selected pod while a server starts."""

import dataclasses

import pytest

from remote.hosts.host_protocol import HostError
from remote.hosts.pods.pod_index import Pod, choose

READY = Pod(
    name="serve-0-a", index=0, created_at="2026-01-01T00:00:00Z", is_terminating=False, node="n", ip="10.0.0.1",
    phase="Running", reason="", is_ready=True,
)  # fmt: skip


def test_a_pod_whose_first_container_runs_takes_commands_where_that_is_asked_for() -> None:
    pending = dataclasses.replace(READY, name="serve-0-b", phase="Pending", is_ready=False)
    with pytest.raises(HostError):
        choose([pending], 0, "pods")
    assert choose([pending], 0, "pods", include_starting=True) is pending
    assert choose([pending, READY], 0, "pods", include_starting=True) is READY
    for over in ({"phase": "Failed"}, {"is_terminating": True}):
        with pytest.raises(HostError):
            choose([dataclasses.replace(pending, **over)], 0, "pods", include_starting=True)
