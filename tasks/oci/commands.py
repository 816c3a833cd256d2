"""Tenancy commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from invoke.context import Context
from invoke.tasks import task

from tasks.oci.access.optional_sdk import require_sdk


@task(default=True, help={"write": "write the suggested settings to ~/.invoke.yaml; a copy of the old file is kept"})
def show(context: Context, write: bool = False) -> None:
    """Show the tenancy's resources and the settings for them."""
    with require_sdk():
        from tasks.oci.show import show_tenancy

    show_tenancy(context, write=write)


@task(
    help={
        "name": "name of the repository (default: that of registry.image, or qlora-fleet)",
        "immutable": "make tags immutable",
    }
)
def repository(context: Context, name: str | None = None, immutable: bool = False) -> None:
    """Create the image's repository if it is missing."""
    with require_sdk():
        from tasks.oci.repository import create_repository

    create_repository(context, name, immutable=immutable)


@task(
    help={
        "cluster": "name or OCID of the cluster (default: the only one)",
        "endpoint": "public or private (default: public if the cluster has one)",
        "file": "kubeconfig file to update (default: cluster.kubeconfig, else kubectl's default)",
    }
)
def kubeconfig(
    context: Context, cluster: str | None = None, endpoint: str | None = None, file: str | None = None
) -> None:
    """Add the cluster to your kubeconfig, without the OCI CLI."""
    with require_sdk():
        from tasks.oci.kubeconfig import write_kubeconfig

    write_kubeconfig(context, cluster, endpoint, file)


@task(
    help={
        "currency": "currency of the prices (default: USD; others are shown but not written)",
        "yes": "do not ask for confirmation before writing",
    }
)
def prices(context: Context, currency: str = "USD", yes: bool = False) -> None:
    """Look up current list prices and write your price table."""
    from tasks.oci.prices import update_prices

    update_prices(context, currency, yes=yes)


@task(
    optional=["remove"],
    help={
        "pool": "name or OCID of the node pool (default: the one with GPUs)",
        "add": "number of nodes to add",
        "remove": "number of nodes to remove, e.g. --remove=2; without a number: all nodes",
        "dry-run": "print the change and its costs, and change nothing",
        "yes": "do not ask for confirmation",
    },
)
def nodes(
    context: Context,
    pool: str | None = None,
    add: str | None = None,
    remove: str | None = None,
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    """Show the GPU node pools, or --add or --remove nodes."""
    with require_sdk():
        from tasks.oci.nodes import resize

    resize(context, pool, add=add, remove=remove, dry_run=dry_run, yes=yes)
