"""Tenancy commands with their flags and help."""

from tasks.cli.command_result import Effect
from tasks.cli.flags import Command, Section, switch, text
from tasks.oci import require_sdk

show = Command(
    "tenancy.show",
    "tasks.oci.show:show_tenancy",
    "Show the tenancy's resources and the settings for them.",
    section=Section.TENANCY,
    effect=Effect.SHOWS,
    is_default=True,
    guard=require_sdk,
)
repository = Command(
    "tenancy.repository",
    "tasks.oci.repository:create_repository",
    "Create the image's repository if it is missing.",
    section=Section.TENANCY,
    effect=Effect.CHANGES,
    guard=require_sdk,
    name=text("name of the repository", unset="that of registry.image, or qlora-fleet"),
    immutable=switch("make tags immutable"),
    dry_run=switch("say whether it exists, and create nothing"),
)
kubeconfig = Command(
    "tenancy.kubeconfig",
    "tasks.oci.oke_clusters:write_kubeconfig",
    "Write the cluster's kubeconfig, without the OCI CLI.",
    section=Section.TENANCY,
    effect=Effect.CHANGES,
    guard=require_sdk,
    cluster=text("name or OCID of the cluster", unset="the only one"),
    endpoint=text("public or private", unset="public if the cluster has one"),
    file=text("file to write, which is not there yet", unset="cluster.kubeconfig, else kubectl's default"),
    dry_run=switch("print the cluster and the file, and write nothing"),
)
