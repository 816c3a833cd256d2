"""Instance principals, e.g. for the build VM: certificates from the metadata service, and a token for them.

The SDK does both and renews the token. On a machine that is not an instance it would retry for three minutes; here it
tries twice.
"""

import datetime
import os
from typing import Any
from urllib.parse import urlsplit

from jwt import PyJWTError
from oci.auth.certificate_retriever import InvalidCertificateFromInstanceMetadataError
from oci.auth.signers import InstancePrincipalsSecurityTokenSigner
from oci.circuit_breaker import NoCircuitBreakerStrategy
from oci.exceptions import ClientError, ServiceError
from oci.retry import RetryStrategyBuilder

from tasks.errors import RetryableError, UsageError
from tasks.oci.api_errors import describe_clock_skew

FEDERATION_ENDPOINT: str | None = None  # replaces the region's token service, in tests
ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC = 2, 60.0, 5.0
_SETTING = "tenancy.auth: instance_principal"
# Errors of the SDK when it requests a token, also while it signs a request: an invalid certificate or token, or one of
# another tenancy.
TOKEN_ERRORS = (RuntimeError, PyJWTError, InvalidCertificateFromInstanceMetadataError)


def create_instance_signer() -> Any:
    """Create the SDK's signer for an instance. Raises UsageError, or RetryableError for a temporary failure."""
    _bypass_proxies()
    retries = retry_strategy(ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC)
    try:
        return InstancePrincipalsSecurityTokenSigner(
            retry_strategy=retries,
            federation_client_retry_strategy=retries,
            federation_client_circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            federation_endpoint=FEDERATION_ENDPOINT,
        )
    except ServiceError as error:
        problem = f"{_SETTING}: no token for this instance: {error.status} {error.code or ''}".rstrip()
        detail = f"{problem}: {_one_line(error.message)}"
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


def _bypass_proxies() -> None:
    """Add the metadata service to no_proxy: it sends the instance's private key over plain HTTP."""
    kind = InstancePrincipalsSecurityTokenSigner
    metadata_host = urlsplit(os.environ.get(kind.METADATA_URL_BASE_ENV_VAR, "")).hostname
    existing = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if existing.strip() != "*":
        hosts = (existing, kind.IMDS_IPV4_HOST, kind.IMDS_IPV6_HOST_BRACKETED.strip("[]"), metadata_host)
        os.environ["no_proxy"] = ",".join(filter(None, hosts))


def retry_strategy(max_attempts: int, max_total_sec: float, max_pause_sec: float) -> Any:
    """Build the SDK's retry strategy."""
    return RetryStrategyBuilder(
        max_attempts=max_attempts,
        total_elapsed_time_seconds=max_total_sec,
        retry_max_wait_between_calls_seconds=max_pause_sec,
    ).get_retry_strategy()


def root_cause(error: BaseException) -> str:
    """Return the innermost error's message on one line. Its URL has no secret: signatures are in headers."""
    if isinstance(error, InvalidCertificateFromInstanceMetadataError):  # its message may contain a received key
        return "the metadata service returned no certificate; is a proxy intercepting the connection?"
    cause = getattr(error, "reason", None) or next(iter(error.args), None)
    return root_cause(cause) if isinstance(cause, BaseException) else _one_line(error) or type(error).__name__


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:200]
