"""Exceptions about a cluster. A pod is a host, so each one is also a HostError.

To the fleet, `PermissionDenied` means that no host will accept this operator, `HostUnreachable` that a retry may help.
"""

import contextlib
from collections.abc import Iterator

from remote.hosts.base import HostError, HostUnreachable, PermissionDenied, collapse_whitespace


class ClusterError(HostError):
    """Error about the cluster; the message has the cause and the remedy."""


class Misconfigured(ClusterError, PermissionDenied):
    """Unusable kubeconfig, context, credentials or kubectl."""


class Forbidden(ClusterError, PermissionDenied):
    """Missing permission of an account whose credentials are valid."""


class PodUnusable(ClusterError):
    """Pod whose image lacks the program of every command. A retry does not help; another pod may have it."""


class Conflict(ClusterError):
    """Conflict with another manager that owns a field of this change."""


class Unreachable(ClusterError, HostUnreachable):
    """API server that does not answer, or a broken connection. Worth a retry."""


class ObjectNotFound(ClusterError):
    """Absent object or absent kind."""


@contextlib.contextmanager
def object_errors() -> Iterator[None]:
    """Translate errors of reading the API's objects: raise ClusterError for a malformed object."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ClusterError(
            f"the cluster returned a malformed object ({type(error).__name__}: {collapse_whitespace(error)[:80]})",
            remedy="check that the kubeconfig's server is the cluster itself, not a proxy",
        ) from error
