"""Tenancy commands with their flags and help."""

from tasks.cli.flags import Command, switch, text
from tasks.oci import require_sdk

show = Command(
    "tenancy.show",
    "tasks.oci.show:show_tenancy",
    "Show the tenancy's resources and the settings for them.",
    is_default=True,
    guard=require_sdk,
    write=switch("write the suggested settings to ~/.invoke.yaml; a copy of the old file is kept"),
)
repository = Command(
    "tenancy.repository",
    "tasks.oci.repository:create_repository",
    "Create the image's repository if it is missing.",
    guard=require_sdk,
    name=text("name of the repository (default: that of registry.image, or qlora-fleet)"),
    immutable=switch("make tags immutable"),
)
kubeconfig = Command(
    "tenancy.kubeconfig",
    "tasks.oci.kubeconfig:write_kubeconfig",
    "Add the cluster to your kubeconfig, without the OCI CLI.",
    guard=require_sdk,
    cluster=text("name or OCID of the cluster (default: the only one)"),
    endpoint=text("public or private (default: public if the cluster has one)"),
    file=text("kubeconfig file to update (default: cluster.kubeconfig, else kubectl's default)"),
)
prices = Command(
    "tenancy.prices",
    "tasks.oci.prices:update_prices",
    "Look up current list prices and write your price table.",
    currency=text("currency of the prices (default: USD; others are shown but not written)", "USD"),
    yes=switch("do not ask for confirmation before writing"),
)
nodes = Command(
    "tenancy.nodes",
    "tasks.oci.nodes:resize",
    "Show the GPU node pools, or --add or --remove nodes.",
    guard=require_sdk,
    name=text("name or OCID of the node pool (default: the one with GPUs)", name="pool"),
    add=text("number of nodes to add", value="N"),
    remove=text(
        "number of nodes to remove, e.g. --remove=2; without a number: all nodes", is_value_optional=True, value="N"
    ),
    dry_run=switch("print the change and its costs, and change nothing"),
    yes=switch("do not ask for confirmation"),
)
