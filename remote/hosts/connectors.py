"""Connectors: the kinds of hosts that a fleet may have. `fleet.kind` in the settings names one."""

from remote.hosts import local
from remote.hosts.host_protocol import Connector
from remote.hosts.pods import host as pods

CONNECTORS: dict[str, Connector] = {connector.name: connector for connector in (local.CONNECTOR, pods.CONNECTOR)}
