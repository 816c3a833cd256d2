"""The tenancy's verbs: signatures and help. `inv --list` reads this file, so the work is imported when a verb runs."""

from invoke.context import Context
from invoke.tasks import task

from tasks.oci.access.optional_sdk import needs_sdk


@task(default=True, help={"write": "put the settings that follow into ~/.invoke.yaml; a copy of the old file is kept"})
def show(context: Context, write: bool = False) -> None:
    """Show what the tenancy has, and settings that follow."""
    with needs_sdk():
        from tasks.oci.show import show_tenancy

    show_tenancy(context, write=write)


@task(
    help={
        "name": "of the repository (default: that of registry.image, or qlora-fleet)",
        "immutable": "a tag that was pushed stays what it is",
    }
)
def repository(context: Context, name: str | None = None, immutable: bool = False) -> None:
    """Make the repository of the image, if it is not there."""
    with needs_sdk():
        from tasks.oci.repository import make_repository

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
    with needs_sdk():
        from tasks.oci.kubeconfig import write_kubeconfig

    write_kubeconfig(context, cluster, endpoint, file)


@task(
    help={
        "currency": "of the prices (default: USD; others are shown and not written)",
        "yes": "do not ask before writing",
    }
)
def prices(context: Context, currency: str = "USD", yes: bool = False) -> None:
    """Look up today's list prices, and write your table."""
    from tasks.oci.prices import take_prices

    take_prices(context, currency, yes=yes)


@task(
    optional=["shrink"],
    help={
        "pool": "name or OCID of the node pool (default: the one with GPUs)",
        "grow": "so many nodes more",
        "shrink": "so many nodes less, as --shrink=2; without a number: down to none",
        "dry-run": "print what would change and what it costs, and change nothing",
        "yes": "do not ask",
    },
)
def nodes(
    context: Context,
    pool: str | None = None,
    grow: str | None = None,
    shrink: str | None = None,
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    """Show the GPU node pools, or grow or shrink one."""
    with needs_sdk():
        from tasks.oci.nodes import resize

    resize(context, pool, grow=grow, shrink=shrink, dry_run=dry_run, yes=yes)
