"""Connectors: the kinds of hosts that a fleet may have. `fleet.kind` in the settings names one."""

from remote.hosts.host_protocol import Connector
from remote.hosts.local import LocalConnector
from remote.hosts.pods.host import PodConnector

CONNECTORS: dict[str, Connector] = {}


def register(connector: Connector) -> None:
    """Add a connector. Raises TypeError or ValueError that names it, if it is incomplete or its name is taken."""
    label = getattr(connector, "name", type(connector).__name__)
    missing = [field for field in Connector.__annotations__ if not hasattr(connector, field)]
    if type(connector).make_hosts is Connector.make_hosts:
        missing.append("make_hosts")
    if missing:
        raise TypeError(f"connector {label}: has no {', '.join(missing)}")
    if label in CONNECTORS:
        raise ValueError(f"connector {label}: registered twice")
    CONNECTORS[label] = connector


register(LocalConnector())
register(PodConnector())
