"""The tenancy's verbs: signatures and help. `inv --list` reads this file, so the work is imported when a verb runs."""

from invoke.context import Context
from invoke.tasks import task


@task(default=True, help={"write": "put the settings that follow into ~/.invoke.yaml; a copy of the old file is kept"})
def show(context: Context, write: bool = False) -> None:
    """Show what the tenancy has, and settings that follow."""
    from tasks.tenancy.show import show_tenancy

    show_tenancy(context, write=write)


@task(
    help={
        "name": "of the repository (default: that of registry.image, or qlora-fleet)",
        "immutable": "a tag that was pushed stays what it is",
    }
)
def repository(context: Context, name: str | None = None, immutable: bool = False) -> None:
    """Make the repository of the image, if it is not there."""
    from tasks.tenancy.repository import make_repository

    make_repository(context, name, immutable=immutable)


@task(
    help={
        "cluster": "name or OCID (default: the one there is)",
        "endpoint": "public or private (default: public where the cluster has it)",
        "file": "the kubeconfig to write into (default: cluster.kubeconfig, then as kubectl)",
    }
)
def kubeconfig(
    context: Context, cluster: str | None = None, endpoint: str | None = None, file: str | None = None
) -> None:
    """Write the cluster into your kubeconfig, without OCI CLI."""
    from tasks.tenancy.kubeconfig import write_kubeconfig

    write_kubeconfig(context, cluster, endpoint, file)
