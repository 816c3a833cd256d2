"""Tests of the registration of connectors: what it refuses, by name."""

from collections.abc import Sequence

import pytest

from remote.hosts.connectors import CONNECTORS, register
from remote.hosts.host_protocol import Connector, FleetRequest, Host
from remote.hosts.local import LocalConnector


class WithoutHosts(Connector):
    name, is_local, is_cluster, silence_sec, max_streams = "without-hosts", True, False, 0.0, 1


class WithoutLimits(Connector):
    name, is_local, is_cluster = "without-limits", True, False

    def make_hosts(self, _request: FleetRequest) -> Sequence[Host]:
        return []


@pytest.mark.parametrize(
    ("connector", "error", "names"),
    [
        (LocalConnector(), ValueError, ("local", "twice")),
        (WithoutHosts(), TypeError, ("without-hosts", "make_hosts")),
        (WithoutLimits(), TypeError, ("without-limits", "silence_sec", "max_streams")),
    ],
    ids=["twice", "no hosts", "no limits"],
)
def test_a_wrong_connector_is_refused_by_name(
    connector: Connector, error: type[Exception], names: tuple[str, ...]
) -> None:
    before = dict(CONNECTORS)
    with pytest.raises(error) as caught:
        register(connector)
    assert all(name in str(caught.value) for name in names)
    assert before == CONNECTORS
