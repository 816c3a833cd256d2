"""Check of the credentials of the OCI tenancy. `inv tenancy` shows its resources."""

import importlib

from tasks.doctor.check import CheckContext, Checks
from tasks.faults import CheckResult, Skipped, passed
from tasks.oci import require_sdk

CLIENTS_MODULE = "tasks.oci.clients"  # imported by the check, because it needs Oracle's SDK
CHECKS = Checks("tenancy")


@CHECKS.register("login", "Are the credentials of Oracle Cloud present, complete, not expired and accepted?")
def login(context: CheckContext) -> CheckResult:
    section = context.settings.tenancy
    file = context.settings.resolve_path(section.config_file)
    if not file.exists() and "tenancy" not in context.only:
        raise Skipped(f"{section.config_file} does not exist: this machine does not use Oracle Cloud")
    with require_sdk():
        clients = importlib.import_module(CLIENTS_MODULE)
    api = clients.connect(context.settings)
    namespace = clients.get_namespace(api)  # a request that every user may make
    return passed(f"{api.credentials.name}: accepted in {api.region}, namespace {namespace}")
