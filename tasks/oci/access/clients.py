"""The Oracle SDK's clients as this project uses them: signed by us, with deadlines and retries, answers as plain JSON.

The SDK is asked for JSON and not for its models: what is read from an answer is named where it is read, and an answer
that is cut or is some proxy's page is seen as such. Its own reading of the configuration is not used: it turns a line
`log_requests` into headers on the terminal, and puts a pass phrase with an umlaut into its error.
"""

import datetime
import time
from collections.abc import Callable, Iterator, Mapping
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
from tasks.oci.access.errors import Caller, NotFound, ServiceCall, explain
from tasks.oci.access.instance import NO_TOKEN, instance_signer, patience, root
from tasks.oci.access.profile import OciProfile, check_ocid, check_region, ocid_kind, read_profile
from tasks.oci.access.signing import Signature, signature_of
from tasks.settings.load import Settings

Json = dict[str, Any]
T = TypeVar("T")
CONNECT_SEC, READ_SEC = 5.0, 30.0
ATTEMPTS, TOTAL_SEC, LONGEST_PAUSE_SEC = 5, 120.0, 20.0
MOST_PAGES = 1000
ENDPOINT: str | None = None  # of every service; None: Oracle's own for the region. Tests have one of their own


class OwnSigner(AbstractBaseSigner):  # type: ignore[misc]
    """The SDK's signing with a key that we have loaded."""

    def __init__(self, signature: Signature) -> None:
        self.api_key, self.private_key = signature.key_id, signature.key
        body = ["content-length", "content-type", "x-content-sha256"]
        self.create_signers(self.api_key, self.private_key, ["date", "(request-target)", "host"], body)


@dataclass(frozen=True, kw_only=True)
class Access:
    """Somebody's entry to a tenancy."""

    tenancy: str
    region: str
    asker: Caller
    signer: Any
    config: Mapping[str, Any]

    def client(self, kind: Any) -> Any:
        """One of the SDK's clients, for this region."""
        return kind(
            dict(self.config),
            signer=self.signer,
            timeout=(CONNECT_SEC, READ_SEC),
            retry_strategy=patience(ATTEMPTS, TOTAL_SEC, LONGEST_PAUSE_SEC),
            circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            skip_deserialization=True,
            **({"service_endpoint": ENDPOINT} if ENDPOINT else {}),
        )

    def response(self, asked: ServiceCall, call: Any, *arguments: Any, **options: Any) -> Any:
        """The SDK's response to a call. Raises a task's error (`tasks.oci.access.errors`)."""
        try:
            return call(*arguments, **options)
        except ServiceError as error:
            raise explain(
                asked,
                self.asker,
                status=error.status,
                code=None if error.code is None else str(error.code),  # of a gateway it may be a number
                message=error.message,
                headers=error.headers,
                request_id=error.request_id,
                now=datetime.datetime.now(datetime.UTC),
            ) from None
        # The SDK's RequestException is an OSError; a proxy's page may be in another encoding than UTF-8.
        except (OSError, UnicodeDecodeError, ClientError, *NO_TOKEN) as error:
            raise RetryableError(
                f"{asked.doing}: no whole answer from {self.region}: {root(error)}; check network and proxy, then the "
                "same again"
            ) from None

    def one(self, asked: ServiceCall, call: Any, *arguments: Any, **options: Any) -> Json:
        """The object that a call answers with."""
        found: Json = self.of_kind(asked, self.response(asked, call, *arguments, **options).data, dict)
        return found

    def of_kind(self, asked: ServiceCall, data: Any, kind: type) -> Any:
        if not isinstance(data, kind):
            raise RetryableError(f"{asked.doing}: not the API's answer: {str(data)[:80]!r}; is a proxy between?")
        return data

    def read(self, asked: ServiceCall, parse: Callable[[Any], T], one: Any) -> T:
        """What `parse`, which asks nobody, finds in an object. Raises Resumable for one without it."""
        try:
            return parse(one)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise RetryableError(
                f"{asked.doing}: an object is not as the API has them: {str(one)[:80]!r}; is a proxy between?"
            ) from None

    def text(self, asked: ServiceCall, one: Json, key: str) -> str:
        """The text that an object has under this key. Raises Resumable."""
        return self.read(asked, lambda found: text(found.get(key)), one)

    def content(self, asked: ServiceCall, call: Any, *arguments: Any, **options: Any) -> bytes:
        """The file that a call answers with, whole."""
        return bytes(self.response(asked, lambda: call(*arguments, **options).data.content))

    def all(self, asked: ServiceCall, call: Any, *arguments: Any, **options: Any) -> list[Json]:
        """All objects of a list, page by page."""
        return list(self._pages(asked, call, *arguments, **options))

    def _pages(self, asked: ServiceCall, call: Any, *arguments: Any, **options: Any) -> Iterator[Json]:
        seen: set[str] = set()
        while True:
            response = self.response(asked, call, *arguments, **options)
            data = response.data
            for item in self.of_kind(asked, data.get("items") if isinstance(data, dict) else data, list):
                yield self.of_kind(asked, item, dict)
            page = response.next_page
            if not page:
                return
            if page in seen or len(seen) >= MOST_PAGES:
                raise RetryableError(f"{asked.doing}: the list has no end; the same again")
            seen.add(page)
            options["page"] = page


def text(found: object) -> str:
    """A name or id as the API has them, never empty: the SDK raises ValueError for that too. Raises ValueError."""
    if not isinstance(found, str) or not found.strip():
        raise ValueError("no text")
    return found


def access(settings: Settings) -> Access:
    """Entry with the settings' credentials. Asks nobody but, for an instance, its own metadata. Raises UsageError."""
    section = settings.tenancy
    if section.auth == "instance_principal":
        return _as_instance(section.region)
    profile = profile_of(settings)
    check_known("tenancy.region" if section.region else f"{profile}: region", profile.region)
    region = regions.get_region_from_short_name(profile.region)
    return Access(
        tenancy=profile.tenancy,
        region=region,
        asker=Caller(credentials=str(profile), region=region),
        signer=OwnSigner(signature_of(profile)),
        # The SDK wants these to be there, and then uses the signer.
        config={
            "tenancy": profile.tenancy,
            "user": profile.user or profile.tenancy,
            "fingerprint": profile.fingerprint or ":".join(["00"] * 16),
            "key_file": str(profile.key_file),
            "region": region,
        },
    )


def profile_of(settings: Settings) -> OciProfile:
    """The profile that the settings name. Raises UsageError."""
    section = settings.tenancy
    return read_profile(settings.file(section.config_file), section.profile, region=section.region, now=time.time())


def _as_instance(region: str | None) -> Access:
    if region is not None:
        check_region("tenancy.region", region)
        check_known("tenancy.region", region)
    signer = instance_signer()
    where = regions.get_region_from_short_name(region or signer.region)
    asker = Caller(credentials="this instance", region=where, is_instance=True)
    return Access(tenancy=signer.tenancy_id, region=where, asker=asker, signer=signer, config={"region": where})


def check_known(what: str, region: str) -> None:
    """Raises UsageError for a region that the SDK does not know."""
    if regions.is_region(region) or regions.is_region_short_name(region):
        return
    near = get_close_matches(region, regions.REGIONS, 1, 0.6)
    advice = f"did you mean {near[0]}?" if near else "a newer SDK may know it: pip install --upgrade oci"
    raise UsageError(f"{what}: {region}: no such region; {advice}")


def compartment_of(settings: Settings, entry: Access) -> tuple[str, str]:
    """(OCID, name) of the settings' compartment; the tenancy's root where none is set. Raises a task's error."""
    wanted = settings.tenancy.compartment
    if wanted is None or wanted == entry.tenancy:
        return entry.tenancy, "the tenancy's root"
    client = entry.client(IdentityClient)
    if ocid_kind(wanted):
        check_ocid("tenancy.compartment", wanted, "compartment")
        asked = ServiceCall(doing=f"looking for compartment {wanted}", right="inspect compartments")
        with translate_errors(
            UsageError, NotFound, before="tenancy.compartment: no such compartment, or not for this user; "
        ):
            return wanted, entry.text(asked, entry.one(asked, client.get_compartment, wanted), "name")
    asked = ServiceCall(doing="listing compartments", right="inspect compartments")
    listed = entry.all(asked, client.list_compartments, entry.tenancy, compartment_id_in_subtree=True)
    named = [one for one in listed if one.get("name") == wanted and one.get("lifecycleState", "ACTIVE") == "ACTIVE"]
    if len(named) == 1:
        return entry.text(asked, named[0], "id"), wanted
    if named:
        ids = ", ".join(str(one.get("id")) for one in named)
        raise UsageError(f"tenancy.compartment: {len(named)} compartments are called {wanted}: {ids}; set one of these")
    known = sorted(str(one.get("name")) for one in listed)
    some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    raise UsageError(f"tenancy.compartment: no compartment {wanted}; there are {some or 'none'}")


def namespace_of(entry: Access) -> str:
    """The tenancy's namespace, under which its repositories are. Raises a task's error."""
    asked = ServiceCall(doing="asking for the tenancy's namespace", right="read objectstorage-namespaces")
    client = entry.client(ObjectStorageClient)
    found = entry.of_kind(asked, entry.response(asked, client.get_namespace).data, str)
    return entry.read(asked, text, found)
