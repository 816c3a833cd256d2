"""What can be wrong with a cluster. A pod is a host, so each of these is also what it means for a host.

To the fleet `OperatorRefused` means that no host will answer this operator, `HostUnreachable` that asking again helps.
"""

from remote.hosts.host import HostError, HostUnreachable, OperatorRefused


class ClusterError(HostError):
    """Something about the cluster; the message says what and what to do."""


class Misconfigured(ClusterError, OperatorRefused):
    """The kubeconfig, the context, the credentials or kubectl itself cannot be used as they are."""


class Forbidden(ClusterError, OperatorRefused):
    """The cluster accepts the credentials, but the account has no right to do this."""


class CannotRun(ClusterError):
    """A pod's image lacks what every command needs. Asking again does not help, and another pod may have it."""


class Conflict(ClusterError):
    """Another manager owns a field that this change would take."""


class Unreachable(ClusterError, HostUnreachable):
    """The API server does not answer, or the connection broke. Worth another try."""


class NotThere(ClusterError):
    """The object, or its whole kind, does not exist."""
