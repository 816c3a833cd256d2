"""What can be wrong with a cluster. A pod is a host, so each of these is also what it means for a host.

To the fleet `OperatorRefused` means that no host will answer this operator, `HostUnreachable` that asking again helps.
"""

import contextlib
from collections.abc import Iterator

from remote.hosts.host import HostError, HostUnreachable, PermissionDenied, one_line


class ClusterError(HostError):
    """Something about the cluster; the message says what and what to do."""


class Misconfigured(ClusterError, PermissionDenied):
    """The kubeconfig, the context, the credentials or kubectl itself cannot be used as they are."""


class Forbidden(ClusterError, PermissionDenied):
    """The cluster accepts the credentials, but the account has no right to do this."""


class KubectlUnusable(ClusterError):
    """A pod's image lacks what every command needs. Asking again does not help, and another pod may have it."""


class Conflict(ClusterError):
    """Another manager owns a field that this change would take."""


class Unreachable(ClusterError, HostUnreachable):
    """The API server does not answer, or the connection broke. Worth another try."""


class NotFound(ClusterError):
    """The object, or its whole kind, does not exist."""


@contextlib.contextmanager
def reading_objects() -> Iterator[None]:
    """Within, objects of the API are read and nobody is asked. Raises ClusterError for one that no API server has."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ClusterError(
            f"an object is not as Kubernetes has them ({type(error).__name__}: {one_line(error)[:80]}); see that the "
            "server of the kubeconfig is the cluster's own, and no proxy answers for it"
        ) from None
