"""The tenancy: are its credentials there, whole and accepted? `inv tenancy` shows what is in it."""

import importlib
from pathlib import Path

from tasks.doctor.answer import Answer, NotAsked, fine
from tasks.doctor.check import Checks
from tasks.doctor.facts import Facts

CHECK_LOGIN = "tasks.tenancy.access.check"  # imported when it is asked: without Oracle's SDK that import raises
CHECKS = Checks("tenancy")


@CHECKS.asks("login", "Are the credentials of Oracle Cloud there, whole, not expired and accepted?")
def login(facts: Facts) -> Answer:
    section = facts.settings.tenancy
    file = Path(section.config_file).expanduser()
    if section.auth == "config" and not file.exists() and "tenancy" not in facts.only:
        raise NotAsked(f"{section.config_file} is not there: nothing is asked of Oracle Cloud from here")
    found = importlib.import_module(CHECK_LOGIN).check_login(facts.settings)
    return fine(f"{found.credentials}: accepted in {found.region}, namespace {found.namespace}")
