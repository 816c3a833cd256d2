"""Requests to Oracle Cloud with its SDK's clients, retries, pagination and models; its errors as a task's.

The API answers 404 both for a missing object and for missing permission, so the message names both. Every message
contains the request id, which Oracle's support needs.
"""

from collections.abc import Callable
from typing import Any

from oci.circuit_breaker import NoCircuitBreakerStrategy
from oci.exceptions import ClientError, ServiceError
from oci.identity import IdentityClient
from oci.object_storage import ObjectStorageClient
from oci.pagination import list_call_get_all_results
from oci.retry import RetryStrategyBuilder

from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.oci.credentials import Credentials, read_profile
from tasks.settings.layers import Settings

CONNECT_TIMEOUT_SEC, READ_TIMEOUT_SEC = 5.0, 30.0
RETRIES = RetryStrategyBuilder(
    max_attempts=5, total_elapsed_time_seconds=120, retry_max_wait_between_calls_seconds=20
).get_retry_strategy()
# Errors of the SDK without a complete answer. Its RequestException is an OSError.
TRANSPORT_ERRORS = (OSError, ClientError, RuntimeError)
ENDPOINT: str | None = None  # replaces the region's endpoint of every service, in tests
Method = Callable[..., Any]


class TenancyApi:
    """Authenticated access to one tenancy and region. Every request raises a task's error.

    `action` describes a request, such as `listing clusters`, and `permission` what it needs, such as `read clusters`.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.tenancy, self.region = credentials.tenancy, credentials.region

    def client(self, kind: Any) -> Any:
        """Create one of the SDK's clients, for this region."""
        return kind(
            dict(self.credentials.config),
            signer=self.credentials.signer,
            timeout=(CONNECT_TIMEOUT_SEC, READ_TIMEOUT_SEC),
            retry_strategy=RETRIES,
            circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            service_endpoint=ENDPOINT,
        )

    def get(self, action: str, permission: str, method: Method, *arguments: Any, **options: Any) -> Any:
        """Call an SDK method and return the model in its response."""
        return self._call(action, permission, method, *arguments, **options).data

    def list_all(self, action: str, permission: str, method: Method, *arguments: Any, **options: Any) -> list[Any]:
        """Return all models of a list, page by page. A page's errors are a task's, which pagination does not retry."""
        pages = list_call_get_all_results(
            lambda *keys, **options: self._call(action, permission, method, *keys, **options), *arguments, **options
        )
        models: list[Any] = pages.data
        return models

    def get_bytes(self, action: str, permission: str, method: Method, *arguments: Any, **options: Any) -> bytes:
        """Call an SDK method that returns a file, and return the whole file."""
        return bytes(self._request(action, permission, lambda: method(*arguments, **options).data.content))

    def _call(self, action: str, permission: str, method: Method, *arguments: Any, **options: Any) -> Any:
        response = self._request(action, permission, method, *arguments, **options)
        if "json" not in response.headers.get("content-type", ""):
            raise _unexpected(action, response.headers.get("content-type"))
        return response

    def _request(self, action: str, permission: str, request: Method, *arguments: Any, **options: Any) -> Any:
        try:
            return request(*arguments, **options)
        except ServiceError as error:
            name = self.credentials.name
            likely = f"is the key of {name} still uploaded (console: User settings, API keys)"
            raise to_task_error(
                error,
                action,
                if_rejected=f"{likely}, is this machine's clock right, is the tenancy subscribed to {self.region}?",
                if_denied=f"required policy: Allow group GROUP to {permission} in tenancy",
            ) from error
        except TRANSPORT_ERRORS as error:
            raise RetryableError(
                f"{action}: no complete response from {self.region}: {root_cause(error)}",
                remedy="check network and proxy, then retry",
            ) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # from the SDK's models
            raise _unexpected(action, error) from error


def _unexpected(action: str, problem: object) -> RetryableError:
    return RetryableError(
        f"{action}: not an API response: {one_line(problem)}", remedy="is a proxy intercepting the connection?"
    )


def required(model: Any, field: str) -> str:
    """Return a model's text field, such as its id. Raises RetryableError if it is missing."""
    value = getattr(model, field, None)
    if not isinstance(value, str) or not value.strip():
        raise _unexpected(f"reading {type(model).__name__}", f"{field} is {value!r}")
    return value


def connect(settings: Settings) -> TenancyApi:
    """Load the settings' credentials; no API request. Raises a task's error."""
    section = settings.tenancy
    return TenancyApi(read_profile(settings.resolve_path(section.config_file), section.profile, section.region))


def resolve_compartment(settings: Settings, api: TenancyApi) -> tuple[str, str]:
    """Return (OCID, name) of tenancy.compartment; the tenancy's root if it is not set. Raises a task's error."""
    wanted = settings.tenancy.compartment
    if wanted is None or wanted == api.tenancy:
        return api.tenancy, "the tenancy's root"
    if wanted.startswith("ocid1."):
        method = api.client(IdentityClient).get_compartment
        compartment = api.get(f"tenancy.compartment: reading {wanted}", "inspect compartments", method, wanted)
        return wanted, required(compartment, "name")
    compartments = list_compartments(api)
    matching = [identifier for identifier, name in compartments.items() if name == wanted]
    if len(matching) == 1:
        return matching[0], wanted
    existing = ", ".join(matching or sorted(compartments.values())[:8]) or "none"
    remedy = f"set one of these OCIDs: {existing}" if matching else f"existing ones: {existing}"
    raise UsageError(f"tenancy.compartment: {len(matching)} compartments are named {wanted}", remedy=remedy)


def list_compartments(api: TenancyApi) -> dict[str, str]:
    """Map the OCID of each compartment that the caller may list to its name."""
    method = api.client(IdentityClient).list_compartments
    compartments = api.list_all(
        "listing compartments", "inspect compartments", method, api.tenancy, compartment_id_in_subtree=True
    )
    return {required(item, "id"): required(item, "name") for item in compartments if item.lifecycle_state == "ACTIVE"}


def get_namespace(api: TenancyApi) -> str:
    """Return the tenancy's Object Storage namespace, also used by its registry. Raises a task's error."""
    method = api.client(ObjectStorageClient).get_namespace
    return str(api.get("reading the tenancy's namespace", "read objectstorage-namespaces", method))


def to_task_error(error: ServiceError, action: str, *, if_rejected: str, if_denied: str) -> TaskFailed:
    """Build the task's error for an error response; two remedies: for the credentials and for a missing permission."""
    code = str(error.code or "")  # a gateway may send a number
    problem = f"{action}: {error.status} {code}".rstrip() + f": {one_line(error.message or 'no message')}"
    request_note = f" (request {error.request_id})" if error.request_id else ""
    if error.status == 401:
        return UsageError(problem, remedy=f"{if_rejected}{request_note}")
    if code.lower().endswith(("limitexceeded", "quotaexceeded")):
        return UsageError(
            problem, remedy=f"use less, or request more (console: Limits, Quotas and Usage){request_note}"
        )
    if error.status == 403:
        return UsageError(problem, remedy=f"{if_denied}{request_note}")
    if error.status == 404:
        return UsageError(
            f"{problem}; it does not exist, or is not visible to this user", remedy=f"{if_denied}{request_note}"
        )
    if error.status in (409, 412):
        return ConfirmationRequired(problem, remedy=f"it was modified concurrently: check it, then retry{request_note}")
    if error.status == 429 or error.status >= 500:
        return RetryableError(problem, remedy=f"tried several times; retry later{request_note}")
    return UsageError(f"{problem}{request_note}")


def root_cause(error: BaseException) -> str:
    """Return the innermost error's message on one line. Its URL has no secret: signatures are in headers."""
    cause = getattr(error, "reason", None) or next(iter(error.args), None)
    return root_cause(cause) if isinstance(cause, BaseException) else one_line(error) or type(error).__name__


def one_line(text: object) -> str:
    """Return the start of a text from outside, on one line."""
    return " ".join(str(text).split())[:200]
