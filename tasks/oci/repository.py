"""`inv tenancy.repository`: the repository that `inv push` pushes to, made where it is not there."""

import re
from collections.abc import Iterable, Sequence

from invoke.context import Context
from oci.artifacts import ArtifactsClient
from oci.artifacts.models import CreateContainerRepositoryDetails
from oci.identity import IdentityClient

from remote.image.references import is_ocir
from tasks.clients.registry import named
from tasks.errors import TaskFailed, UsageError
from tasks.oci.access.clients import Access, Json, access, compartment_of, namespace_of
from tasks.oci.access.errors import ServiceCall
from tasks.oci.discovery import REPOSITORY, registry_host
from tasks.settings.load import Settings, load

_GRANTS = re.compile(
    r"\s*allow\s+(?P<who>(?:any-user|(?:dynamic-)?group\s+\S+|service\s+\S+))\s+to\s+(?P<verb>use|manage)\s+"
    r"(?P<what>repos|all-resources)\s+in\s+(?P<where>.+)",
    re.IGNORECASE,
)


def make_repository(context: Context, name: str | None, *, immutable: bool) -> None:
    settings = load(context)
    entry = access(settings)
    namespace = namespace_of(entry)
    path = name or _path(settings, entry, namespace)
    compartment, where = compartment_of(settings, entry)
    client = entry.client(ArtifactsClient)
    asked = ServiceCall(doing="looking for the repository", right="manage repos")
    listed = entry.all(asked, client.list_container_repositories, compartment, display_name=path)
    there = next((one for one in listed if one.get("displayName") == path), None)
    full = f"{registry_host(entry.region)}/{namespace}/{path}"
    if there is None:
        details = CreateContainerRepositoryDetails(
            compartment_id=compartment, display_name=path, is_public=False, is_immutable=immutable
        )
        asked = ServiceCall(doing=f"making repository {path} in {where}", right="manage repos")
        entry.one(asked, client.create_container_repository, details)
        print(f"made {full}, private{', immutable: a tag is pushed once' if immutable else ''}, in {where}")
    else:
        print(f"{full} is there, {'PUBLIC: everybody can pull from it' if there.get('isPublic') else 'private'}")
        if immutable:
            _refuse_mutable(entry, client, there, full)
    for line in _who(entry, compartment):
        print(line)


def _refuse_mutable(entry: Access, client: object, there: Json, full: str) -> None:
    asked = ServiceCall(doing=f"asking for repository {full}", right="read repos")
    one = entry.one(asked, client.get_container_repository, entry.text(asked, there, "id"))  # type: ignore[attr-defined]
    if not one.get("isImmutable"):
        raise UsageError(f"{full} is there and not immutable; the console can change that, or name another repository")


def _path(settings: Settings, entry: Access, namespace: str) -> str:
    """The repository of registry.image, which must be in this tenancy and region; without one, our own name."""
    image = settings.registry.image
    if image is None:
        return REPOSITORY
    where = named("registry.image", image, "latest")
    inside, _, path = where.path.partition("/")
    if not is_ocir(where.host) or inside != namespace:
        raise UsageError(
            f"registry.image: {image} is not of this tenancy; expected {registry_host(entry.region)}/{namespace}/..."
        )
    if where.host not in (registry_host(entry.region), f"ocir.{entry.region}.oci.oraclecloud.com"):
        raise UsageError(f"registry.image: {where.host} is not the registry of {entry.region}; set tenancy.region")
    return path


def _who(entry: Access, compartment: str) -> list[str]:
    """Who may push, as the policies say. They may be forbidden to read; the repository is there all the same."""
    client = entry.client(IdentityClient)
    asked = ServiceCall(doing="listing policies", right="inspect policies")
    statements: list[str] = []
    try:
        for place in dict.fromkeys((entry.tenancy, compartment)):
            for policy in entry.all(asked, client.list_policies, place):
                if policy.get("lifecycleState", "ACTIVE") == "ACTIVE":
                    statements += entry.read(asked, _statements, policy)
    except TaskFailed as error:
        return [f"who may push is not known: {error}"]
    allowed = who_may_push(statements)
    if not allowed:
        return [
            f"no policy lets anybody push but administrators; one that would: {entry.asker.statement('manage repos')}"
        ]
    return ["who may push:", *(f"  {line}" for line in allowed)]


def _statements(policy: Json) -> list[str]:
    return [str(one) for one in policy.get("statements") or ()]


def who_may_push(statements: Iterable[str]) -> Sequence[str]:
    """The statements that let somebody push to repositories; their conditions are shown, not judged."""
    return [" ".join(statement.split()) for statement in statements if _GRANTS.match(statement)]
