"""Node pools of OKE by Oracle's SDK, as the instance or the workload that the pod is.

The SDK gets, renews and uses the credentials; nothing is signed here. Responses are read as JSON, field by field, as a
proxy's page or a cut response may arrive instead.
"""

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from jwt import PyJWTError
from oci.auth.certificate_retriever import InvalidCertificateFromInstanceMetadataError
from oci.auth.signers import InstancePrincipalsSecurityTokenSigner, get_oke_workload_identity_resource_principal_signer
from oci.circuit_breaker import NoCircuitBreakerStrategy
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import UpdateNodePoolDetails, UpdateNodePoolNodeConfigDetails
from oci.exceptions import ClientError, ServiceError
from oci.retry import RetryStrategyBuilder

from bench.nodes.pool import PoolError, PoolState
from bench.records.nodes import JobIdentity, JobPool

ENDPOINT: str | None = None  # replace the region's services, in tests
FEDERATION_ENDPOINT: str | None = None
ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC = 4, 60.0, 10.0
CONNECT_TIMEOUT_SEC, READ_TIMEOUT_SEC = 5.0, 30.0
MAX_NODES = 1000
# Errors of the SDK when it requests a token, also while it signs a request: an invalid certificate or token.
TOKEN_ERRORS = (RuntimeError, PyJWTError, InvalidCertificateFromInstanceMetadataError)


class OkePools:
    """Access to the pools of one region, signed by `signer`."""

    def __init__(self, region: str, signer: Any) -> None:
        self._client = ContainerEngineClient(
            {"region": region},
            signer=signer,
            timeout=(CONNECT_TIMEOUT_SEC, READ_TIMEOUT_SEC),
            retry_strategy=retry_strategy(ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC),
            circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            skip_deserialization=True,
            **({"service_endpoint": ENDPOINT} if ENDPOINT else {}),
        )

    def read(self, pool_id: str) -> PoolState:
        """Read a pool. Raises PoolError."""
        action = "reading the node pool"
        response = _call(action, lambda: self._client.get_node_pool(pool_id))
        try:
            return _parse(response.data, response.headers.get("etag"))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PoolError(f"{action}: not a node pool: {str(response.data)[:80]!r}", is_transient=True) from error

    def resize(self, pool_id: str, size: int, etag: str | None) -> str | None:
        """Request a size if the pool still has this etag; return the work request's id if known. Raises PoolError."""
        details = UpdateNodePoolDetails(node_config_details=UpdateNodePoolNodeConfigDetails(size=size))
        condition = {"if_match": etag} if etag else {}
        response = _call("resizing the pool", lambda: self._client.update_node_pool(pool_id, details, **condition))
        work_request_id = response.headers.get("opc-work-request-id")
        return None if work_request_id is None else str(work_request_id)


def open_pools(job: JobPool) -> OkePools:
    """Get the pod's credentials and return the access to its pools. Raises PoolError."""
    retries = retry_strategy(ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC)
    create = _workload_signer if job.identity is JobIdentity.WORKLOAD else _instance_signer
    return OkePools(job.region, _call(f"getting a token as {job.identity.value}", lambda: create(job, retries)))


def _workload_signer(job: JobPool, retries: Any) -> Any:
    os.environ["OCI_RESOURCE_PRINCIPAL_VERSION"], os.environ["OCI_RESOURCE_PRINCIPAL_REGION"] = "2.2", job.region
    return get_oke_workload_identity_resource_principal_signer(retry_strategy=retries)


def _instance_signer(_job: JobPool, retries: Any) -> Any:
    return instance_signer(retries, FEDERATION_ENDPOINT)


def instance_signer(retries: Any, federation_endpoint: str | None) -> Any:
    """Create the SDK's signer for an instance; proxies do not get the metadata service's answers, which have its key.

    On a machine that is not an instance the SDK would by default retry for three minutes. Raises the SDK's errors.
    """
    kind = InstancePrincipalsSecurityTokenSigner
    metadata_host = urlsplit(os.environ.get(kind.METADATA_URL_BASE_ENV_VAR, "")).hostname
    existing = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if existing.strip() != "*":
        hosts = (existing, kind.IMDS_IPV4_HOST, kind.IMDS_IPV6_HOST_BRACKETED.strip("[]"), metadata_host)
        os.environ["no_proxy"] = ",".join(filter(None, hosts))
    return kind(
        retry_strategy=retries,
        federation_client_retry_strategy=retries,
        federation_client_circuit_breaker_strategy=NoCircuitBreakerStrategy(),
        federation_endpoint=federation_endpoint,
    )


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
    return root_cause(cause) if isinstance(cause, BaseException) else one_line(error) or type(error).__name__


def _call(action: str, request: Callable[[], Any]) -> Any:
    """Run a request of the SDK. Raises PoolError."""
    try:
        return request()
    except ServiceError as error:
        problem = f"{action}: {error.status} {error.code or ''}".rstrip()
        is_transient = error.status == 429 or error.status >= 500
        is_denied = error.status in (401, 403, 404)
        raise PoolError(
            f"{problem}: {one_line(error.message)}", is_transient=is_transient, is_denied=is_denied
        ) from error
    # The SDK's RequestException is an OSError; a proxy's page may not be UTF-8.
    except (OSError, ClientError, ValueError, *TOKEN_ERRORS) as error:
        raise PoolError(f"{action}: no complete response: {root_cause(error)}", is_transient=True) from error


def _parse(item: Any, etag: str | None) -> PoolState:
    """Parse a node pool. Raises LookupError, TypeError, ValueError and AttributeError."""
    size = int(item["nodeConfigDetails"]["size"])
    nodes = [node for node in item.get("nodes") or () if node.get("lifecycleState") != "DELETED"]
    if not 0 <= size <= MAX_NODES or len(nodes) > MAX_NODES:
        raise ValueError("size")
    failures = [(node.get("nodeError") or {}).get("message") for node in nodes]
    return PoolState(
        size=size,
        addresses=tuple(node.get("privateIp") for node in nodes),
        etag=etag,
        failures=tuple(one_line(failure) for failure in failures if failure),
    )


def one_line(text: object) -> str:
    """Return the start of a text from outside, on one line."""
    return " ".join(str(text).split())[:200]
