"""Instance principals, e.g. for the build VM: certificates from the metadata service, and a token for them.

The SDK does both and renews the token. On a machine that is not an instance it would retry for three minutes; here it
tries twice.
"""

import datetime
import os
from typing import Any
from urllib.parse import urlsplit

from oci.auth.signers import InstancePrincipalsSecurityTokenSigner
from oci.circuit_breaker import NoCircuitBreakerStrategy
from oci.exceptions import ClientError, ServiceError

from tasks.errors import RetryableError, UsageError
from tasks.oci.api_errors import TOKEN_ERRORS, describe_clock_skew, one_line, retry_strategy, root_cause

FEDERATION_ENDPOINT: str | None = None  # replaces the region's token service, in tests
ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC = 2, 60.0, 5.0
_SETTING = "tenancy.auth: instance_principal"


def create_instance_signer() -> Any:
    """Create the SDK's signer for an instance. Raises UsageError, or RetryableError for a temporary failure."""
    try:
        return _instance_signer()
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


def _instance_signer() -> Any:
    """Create the signer; proxies do not get the metadata service's answers, which have its key. Raises SDK errors."""
    kind = InstancePrincipalsSecurityTokenSigner
    metadata_host = urlsplit(os.environ.get(kind.METADATA_URL_BASE_ENV_VAR, "")).hostname
    existing = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if existing.strip() != "*":
        hosts = (existing, kind.IMDS_IPV4_HOST, kind.IMDS_IPV6_HOST_BRACKETED.strip("[]"), metadata_host)
        os.environ["no_proxy"] = ",".join(filter(None, hosts))
    retries = retry_strategy(ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC)
    return kind(
        retry_strategy=retries,
        federation_client_retry_strategy=retries,
        federation_client_circuit_breaker_strategy=NoCircuitBreakerStrategy(),
        federation_endpoint=FEDERATION_ENDPOINT,
    )
