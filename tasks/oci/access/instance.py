"""Who an instance of the tenancy is, such as the build VM: certificates from its metadata service, a token for them.

The SDK does both, and renews the token by itself. Its own patience with a machine that is no instance is three minutes;
here it is asked twice.
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
from tasks.oci.access.errors import skew

FEDERATION: str | None = None  # the address that gives tokens; None: Oracle's own for the region. Tests have another
ATTEMPTS, TOTAL_SEC, LONGEST_PAUSE_SEC = 2, 60.0, 5.0
_SETTING = "tenancy.auth: instance_principal"
# What the SDK raises where it asks for a token, also while a request is signed: a certificate that is none or another
# tenancy's, a token that is none.
NO_TOKEN = (RuntimeError, PyJWTError, InvalidCertificateFromInstanceMetadataError)


def instance_signer() -> Any:
    """The SDK's signer for an instance. Raises UsageError, and Resumable where the service may answer later."""
    _past_proxies()
    asked_again = patience(ATTEMPTS, TOTAL_SEC, LONGEST_PAUSE_SEC)
    try:
        return InstancePrincipalsSecurityTokenSigner(
            retry_strategy=asked_again,
            federation_client_retry_strategy=asked_again,
            federation_client_circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            federation_endpoint=FEDERATION,
        )
    except ServiceError as error:
        what = f"{_SETTING}: no token for this instance: {error.status} {error.code or ''}".rstrip()
        said = f"{what}: {_one_line(error.message)}"
        if error.status == 429 or error.status >= 500:
            raise RetryableError(f"{said}; asked several times; the same again later") from None
        skewed = skew(error.headers, datetime.datetime.now(datetime.UTC)) if error.status == 401 else None
        if skewed is not None:
            raise UsageError(f"{what}: {skewed}; set it (timedatectl set-ntp true), then the same again") from None
        raise UsageError(f"{said}; elsewhere than on an instance set tenancy.auth: config") from None
    except (OSError, ClientError, ValueError, *NO_TOKEN) as error:
        raise UsageError(
            f"{_SETTING}: no instance's credentials here ({root(error)}); it "
            "works on an instance of the tenancy that is in a dynamic group; elsewhere set tenancy.auth: config"
        ) from None


def _past_proxies() -> None:
    """From now on no proxy of the environment is asked for the metadata service: its answer is the instance's private
    key, over plain HTTP."""
    kind = InstancePrincipalsSecurityTokenSigner
    given = urlsplit(os.environ.get(kind.METADATA_URL_BASE_ENV_VAR, "")).hostname
    before = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if before.strip() != "*":
        hosts = (before, kind.IMDS_IPV4_HOST, kind.IMDS_IPV6_HOST_BRACKETED.strip("[]"), given)
        os.environ["no_proxy"] = ",".join(filter(None, hosts))


def patience(attempts: int, total_sec: float, longest_pause_sec: float) -> Any:
    """How often, and for how long, the SDK asks again."""
    return RetryStrategyBuilder(
        max_attempts=attempts,
        total_elapsed_time_seconds=total_sec,
        retry_max_wait_between_calls_seconds=longest_pause_sec,
    ).get_retry_strategy()


def root(error: BaseException) -> str:
    """What the innermost error says, on one line. Its URL has no secret: signatures are in headers."""
    if isinstance(error, InvalidCertificateFromInstanceMetadataError):  # whose own words hold what came, a key perhaps
        return "the metadata service gives no certificate; is a proxy between?"
    below = getattr(error, "reason", None) or next(iter(error.args), None)
    return root(below) if isinstance(below, BaseException) else _one_line(error) or type(error).__name__


def _one_line(words: object) -> str:
    return " ".join(str(words).split())[:200]
