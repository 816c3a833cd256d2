"""Instance principals, e.g. for the build VM: certificates from the metadata service, and a token for them.

The SDK does both and renews the token. On a machine that is not an instance it would retry for three minutes; here it
tries twice.
"""

import datetime
from typing import Any

from oci.exceptions import ClientError, ServiceError

from bench.nodes.oke import TOKEN_ERRORS, instance_signer, one_line, retry_strategy, root_cause
from tasks.errors import RetryableError, UsageError
from tasks.oci.api_errors import describe_clock_skew

FEDERATION_ENDPOINT: str | None = None  # replaces the region's token service, in tests
ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC = 2, 60.0, 5.0
_SETTING = "tenancy.auth: instance_principal"


def create_instance_signer() -> Any:
    """Create the SDK's signer for an instance. Raises UsageError, or RetryableError for a temporary failure."""
    retries = retry_strategy(ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC)
    try:
        return instance_signer(retries, FEDERATION_ENDPOINT)
    except ServiceError as error:
        problem = f"{_SETTING}: no token for this instance: {error.status} {error.code or ''}".rstrip()
        detail = f"{problem}: {one_line(error.message)}"
        if error.status == 429 or error.status >= 500:
            raise RetryableError(detail, remedy="tried several times; retry later") from error
        now = datetime.datetime.now(datetime.UTC)
        skewed = describe_clock_skew(error.headers, now) if error.status == 401 else None
        if skewed is not None:
            raise UsageError(f"{problem}: {skewed}", remedy="set it (timedatectl set-ntp true), then retry") from error
        raise UsageError(detail, remedy="if this machine is not an instance, set tenancy.auth: config") from error
    except (OSError, ClientError, ValueError, *TOKEN_ERRORS) as error:
        raise UsageError(
            f"{_SETTING}: no instance credentials here ({root_cause(error)})",
            remedy="use it on an instance of the tenancy in a dynamic group; elsewhere set tenancy.auth: config",
        ) from error
