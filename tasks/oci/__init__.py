"""Oracle Cloud: `inv tenancy` and its subcommands, and kubectl's credential plugin.

credentials: the SDK's signer for a profile of the OCI CLI's configuration
clients: the SDK's clients with deadlines, retries and pagination; its errors; compartment, namespace
commands: flags and help of `inv tenancy` and its subcommands
show: `inv tenancy`: read everything in parallel, and print it
discovery: read a tenancy's resources, and derive settings from them
repository: `inv tenancy.repository`
oke_clusters: `inv tenancy.kubeconfig`

kubectl runs `python -m tasks.oci token` for a token.
"""

import contextlib
from collections.abc import Iterator

from tasks.errors import UsageError


@contextlib.contextmanager
def require_sdk() -> Iterator[None]:
    """Guard an import of modules that use Oracle's SDK, which is optional. Raises UsageError if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the tenancy tasks need Oracle's SDK ({error.name} is missing)",
            remedy="type: make sdk (500 MB), or without a checkout: pip install 'qlora-fleet[tenancy]'",
        ) from error
