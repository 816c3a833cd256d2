"""Oracle SDK clients with our own signing, deadlines and retries; responses are plain JSON.

The SDK's models are not used, so that each field is checked where it is read, and a truncated response or a proxy's
page is recognised. The SDK's configuration parser is not used either: `log_requests` makes it print headers to the
terminal, and its error shows a pass phrase that contains an umlaut.
"""

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from oci import regions
from oci.circuit_breaker import NoCircuitBreakerStrategy
from oci.exceptions import ClientError, ServiceError
from oci.identity import IdentityClient
from oci.object_storage import ObjectStorageClient
from oci.signer import AbstractBaseSigner

from tasks.errors import RetryableError, UsageError, translate_errors
from tasks.oci.api_errors import (
    TOKEN_ERRORS,
    ApiNotFound,
    Caller,
    Operation,
    retry_strategy,
    root_cause,
    to_task_error,
)
from tasks.oci.credentials import (
    OciProfile,
    SigningKey,
    check_ocid,
    check_region,
    load_signing_key,
    ocid_type,
    read_profile,
)
from tasks.oci.instance import create_instance_signer
from tasks.settings.load import Settings

Json = dict[str, Any]
T = TypeVar("T")
CONNECT_TIMEOUT_SEC, READ_TIMEOUT_SEC = 5.0, 30.0
ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC = 5, 120.0, 20.0
MAX_PAGES = 1000
ENDPOINT: str | None = None  # replaces the region's endpoint of every service, in tests


class KeySigner(AbstractBaseSigner):  # type: ignore[misc]
    """SDK request signer for a key that we have loaded."""

    def __init__(self, signing_key: SigningKey) -> None:
        self.api_key, self.private_key = signing_key.key_id, signing_key.key
        body = ["content-length", "content-type", "x-content-sha256"]
        self.create_signers(self.api_key, self.private_key, ["date", "(request-target)", "host"], body)


@dataclass(frozen=True, kw_only=True)
class TenancyApi:
    """Authenticated access to one tenancy and region. Every request raises a task's error."""

    tenancy: str
    region: str
    caller: Caller
    signer: Any
    config: Mapping[str, Any]

    def client(self, kind: Any) -> Any:
        """Create one of the SDK's clients, for this region."""
        return kind(
            dict(self.config),
            signer=self.signer,
            timeout=(CONNECT_TIMEOUT_SEC, READ_TIMEOUT_SEC),
            retry_strategy=retry_strategy(ATTEMPTS, MAX_TOTAL_SEC, MAX_PAUSE_SEC),
            circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            skip_deserialization=True,
            **({"service_endpoint": ENDPOINT} if ENDPOINT else {}),
        )

    def call(self, operation: Operation, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call an SDK method and return its response. Raises a task's error (`tasks.oci.api_errors`)."""
        try:
            return method(*arguments, **options)
        except ServiceError as error:
            raise to_task_error(
                operation,
                self.caller,
                status=error.status,
                code=None if error.code is None else str(error.code),  # a gateway may send a number
                message=error.message,
                headers=error.headers,
                request_id=error.request_id,
                now=datetime.datetime.now(datetime.UTC),
            ) from error
        # The SDK's RequestException is an OSError; a proxy's page may not be UTF-8.
        except (OSError, UnicodeDecodeError, ClientError, *TOKEN_ERRORS) as error:
            raise RetryableError(
                f"{operation.action}: no complete response from {self.region}: {root_cause(error)}",
                remedy="check network and proxy, then retry",
            ) from error

    def get_object(self, operation: Operation, method: Any, *arguments: Any, **options: Any) -> Json:
        """Call an SDK method and return its JSON object."""
        data: Json = self.check_type(operation, self.call(operation, method, *arguments, **options).data, dict)
        return data

    def check_type(self, operation: Operation, data: Any, kind: type) -> Any:
        if not isinstance(data, kind):
            raise RetryableError(
                f"{operation.action}: not an API response: {str(data)[:80]!r}",
                remedy="is a proxy intercepting the connection?",
            )
        return data

    def parse(self, operation: Operation, parser: Callable[[Any], T], item: Any) -> T:
        """Apply `parser` to an object without further requests. Raises RetryableError for a malformed object."""
        try:
            return parser(item)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RetryableError(
                f"{operation.action}: malformed object: {str(item)[:80]!r}",
                remedy="is a proxy intercepting the connection?",
            ) from error

    def text_field(self, operation: Operation, item: Json, key: str) -> str:
        """Return an object's non-empty text field. Raises RetryableError."""
        return self.parse(operation, lambda fields: require_text(fields.get(key)), item)

    def get_bytes(self, operation: Operation, method: Any, *arguments: Any, **options: Any) -> bytes:
        """Call an SDK method and return the whole file."""
        return bytes(self.call(operation, lambda: method(*arguments, **options).data.content))

    def list_all(self, operation: Operation, method: Any, *arguments: Any, **options: Any) -> list[Json]:
        """Return all objects of a list, page by page."""
        items: list[Json] = []
        seen_pages: set[str] = set()
        while True:
            response = self.call(operation, method, *arguments, **options)
            data = response.data
            page_items = self.check_type(operation, data.get("items") if isinstance(data, dict) else data, list)
            items += [self.check_type(operation, item, dict) for item in page_items]
            page = response.next_page
            if not page:
                return items
            if page in seen_pages or len(seen_pages) >= MAX_PAGES:
                raise RetryableError(
                    f"{operation.action}: pagination did not end after {len(seen_pages)} pages", remedy="retry"
                )
            seen_pages.add(page)
            options["page"] = page


def require_text(value: object) -> str:
    """Check for a non-empty text, such as a name or id. Raises ValueError, as the SDK does for an empty one."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no text")
    return value


def connect(settings: Settings) -> TenancyApi:
    """Load the settings' credentials, for an instance from its metadata; no API request. Raises UsageError."""
    section = settings.tenancy
    if section.auth == "instance_principal":
        return _connect_as_instance(section.region)
    profile = selected_profile(settings)
    check_region_exists("tenancy.region" if section.region else f"{profile}: region", profile.region)
    region = regions.get_region_from_short_name(profile.region)
    return TenancyApi(
        tenancy=profile.tenancy,
        region=region,
        caller=Caller(credentials=str(profile), region=region),
        signer=KeySigner(load_signing_key(profile)),
        # The SDK validates these fields and then uses the signer.
        config={
            "tenancy": profile.tenancy,
            "user": profile.user or profile.tenancy,
            "fingerprint": profile.fingerprint or ":".join(["00"] * 16),
            "key_file": str(profile.key_file),
            "region": region,
        },
    )


def selected_profile(settings: Settings) -> OciProfile:
    """Read the profile of tenancy.profile. Raises UsageError."""
    section = settings.tenancy
    file = settings.resolve_path(section.config_file)
    return read_profile(file, section.profile, region=section.region, now=time.time())


def _connect_as_instance(region: str | None) -> TenancyApi:
    if region is not None:
        check_region("tenancy.region", region)
        check_region_exists("tenancy.region", region)
    signer = create_instance_signer()
    full_region = regions.get_region_from_short_name(region or signer.region)
    caller = Caller(credentials="this instance", region=full_region, is_instance=True)
    return TenancyApi(
        tenancy=signer.tenancy_id, region=full_region, caller=caller, signer=signer, config={"region": full_region}
    )


def check_region_exists(setting: str, region: str) -> None:
    """Check that the SDK knows the region. Raises UsageError."""
    if regions.is_region(region) or regions.is_region_short_name(region):
        return
    suggestions = get_close_matches(region, regions.REGIONS, 1, 0.6)
    remedy = f"did you mean {suggestions[0]}?" if suggestions else "a newer SDK may know it: pip install --upgrade oci"
    raise UsageError(f"{setting}: {region}: no such region", remedy=remedy)


def resolve_compartment(settings: Settings, api: TenancyApi) -> tuple[str, str]:
    """Return (OCID, name) of tenancy.compartment; the tenancy's root if it is not set. Raises a task's error."""
    wanted = settings.tenancy.compartment
    if wanted is None or wanted == api.tenancy:
        return api.tenancy, "the tenancy's root"
    client = api.client(IdentityClient)
    if ocid_type(wanted):
        check_ocid("tenancy.compartment", wanted, "compartment")
        operation = Operation(action=f"reading compartment {wanted}", permission="inspect compartments")
        with translate_errors(
            UsageError, ApiNotFound, prefix="tenancy.compartment: no such compartment, or not visible to this user; "
        ):
            return wanted, api.text_field(operation, api.get_object(operation, client.get_compartment, wanted), "name")
    operation = Operation(action="listing compartments", permission="inspect compartments")
    compartments = api.list_all(operation, client.list_compartments, api.tenancy, compartment_id_in_subtree=True)
    matching = [
        compartment
        for compartment in compartments
        if compartment.get("name") == wanted and compartment.get("lifecycleState", "ACTIVE") == "ACTIVE"
    ]
    if len(matching) == 1:
        return api.text_field(operation, matching[0], "id"), wanted
    if matching:
        ids = ", ".join(str(compartment.get("id")) for compartment in matching)
        raise UsageError(
            f"tenancy.compartment: {len(matching)} compartments are named {wanted}: {ids}",
            remedy="set one of these OCIDs",
        )
    known = sorted(str(compartment.get("name")) for compartment in compartments)
    examples = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    raise UsageError(f"tenancy.compartment: no compartment {wanted}", remedy=f"existing ones: {examples or 'none'}")


def get_namespace(api: TenancyApi) -> str:
    """Return the tenancy's Object Storage namespace, also used by its registry. Raises a task's error."""
    operation = Operation(action="reading the tenancy's namespace", permission="read objectstorage-namespaces")
    client = api.client(ObjectStorageClient)
    data = api.check_type(operation, api.call(operation, client.get_namespace).data, str)
    return api.parse(operation, require_text, data)
