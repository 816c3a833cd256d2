"""`inv tenancy.repository`: create the repository that `inv push` pushes to, if it is missing."""

from invoke.context import Context
from oci.artifacts import ArtifactsClient
from oci.artifacts.models import ContainerRepositorySummary, CreateContainerRepositoryDetails

from tasks.cli.command_result import CommandResult, plan_result
from tasks.clients.registry import parse_reference
from tasks.errors import UsageError
from tasks.oci.clients import TenancyApi, connect, get_namespace, required, resolve_compartment
from tasks.oci.discovery import DEFAULT_REPOSITORY, registry_host
from tasks.settings.layers import Settings, load


def create_repository(
    context: Context, name: str | None, *, immutable: bool, dry_run: bool = False
) -> CommandResult | None:
    settings = load(context)
    api = connect(settings)
    namespace = get_namespace(api)
    path = name or _repository_path(settings, api, namespace)
    compartment, compartment_name = resolve_compartment(settings, api)
    client = api.client(ArtifactsClient)
    existing = _find_repository(api, client, compartment, path)
    full_name = f"{registry_host(api.region)}/{namespace}/{path}"
    if dry_run:
        lines = [f"{'create' if existing is None else 'keep'}  {full_name}"]
        return plan_result(lines, repository=full_name, exists=existing is not None, compartment=compartment_name)
    if existing is None:
        details = CreateContainerRepositoryDetails(
            compartment_id=compartment, display_name=path, is_public=False, is_immutable=immutable
        )
        action = f"creating repository {path} in {compartment_name}"
        api.get(action, "manage repos", client.create_container_repository, details)
        visibility = "private, immutable: a tag can be pushed only once" if immutable else "private"
        print(f"created {full_name}, {visibility}, in {compartment_name}")
        return None
    visibility = "PUBLIC: everyone can pull from it" if existing.is_public else "private"
    print(f"{full_name} exists in {compartment_name}, {visibility}")
    reading = (f"reading repository {full_name}", "read repos", client.get_container_repository)
    if immutable and not api.get(*reading, required(existing, "id")).is_immutable:
        remedy = "change that in the console, or use another repository"
        raise UsageError(f"{full_name} exists and is not immutable", remedy=remedy)
    return None


def _find_repository(
    api: TenancyApi, client: ArtifactsClient, compartment: str, path: str
) -> ContainerRepositorySummary | None:
    """Find the repository in the compartment. If another one has its name, creating it says so."""
    request = ("finding the repository", "manage repos", client.list_container_repositories)
    repositories = api.list_all(*request, compartment, display_name=path)
    return next((repository for repository in repositories if repository.display_name == path), None)


def _repository_path(settings: Settings, api: TenancyApi, namespace: str) -> str:
    """Return the repository of registry.image, or the default. Raises UsageError for another tenancy or region."""
    image = settings.registry.image
    if image is None:
        return DEFAULT_REPOSITORY
    reference = parse_reference("registry.image", image, "latest")
    image_namespace, _, path = reference.path.partition("/")
    hosts = registry_host(api.region), f"ocir.{api.region}.oci.oraclecloud.com"
    if reference.host not in hosts or image_namespace != namespace:
        raise UsageError(
            f"registry.image: {image} is not in this tenancy and region",
            remedy=f"expected {hosts[0]}/{namespace}/...; or set tenancy.region",
        )
    return path
