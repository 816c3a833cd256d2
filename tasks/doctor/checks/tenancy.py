"""The tenancy."""

from tasks.doctor.answer import Answer, NotAsked
from tasks.doctor.check import Check
from tasks.doctor.facts import Facts


def limits(_: Facts) -> Answer:
    raise NotAsked("no task of this project asks the tenancy yet; the OCI console shows limits and node pools")


CHECKS = (
    Check(
        subject="tenancy", name="limits", asks="Do login, limits and node pools of the tenancy suffice?", look=limits
    ),
)
