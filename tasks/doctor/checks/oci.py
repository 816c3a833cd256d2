"""The tenancy: are its credentials there, whole and accepted? `inv tenancy` shows what is in it."""

import importlib

from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Skipped, fine
from tasks.oci.access.optional_sdk import needs_sdk

CLIENTS = "tasks.oci.access.clients"  # imported when it is asked: it needs Oracle's SDK
CHECKS = Checks("tenancy")


@CHECKS.asks("login", "Are the credentials of Oracle Cloud there, whole, not expired and accepted?")
def login(facts: CheckContext) -> CheckResult:
    section = facts.settings.tenancy
    file = facts.settings.file(section.config_file)
    if section.auth == "config" and not file.exists() and "tenancy" not in facts.only:
        raise Skipped(f"{section.config_file} is not there: nothing is asked of Oracle Cloud from here")
    with needs_sdk():
        clients = importlib.import_module(CLIENTS)
    entry = clients.access(facts.settings)
    namespace = clients.namespace_of(entry)  # which every user may know
    return fine(f"{entry.asker.credentials}: accepted in {entry.region}, namespace {namespace}")
