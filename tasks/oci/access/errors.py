"""An error of Oracle's API as a task's error: what was asked, what came back, what to type next. Pure.

The API answers 404 where something is not there and where a user may not know whether it is: both are said. Every
message has the request's id, by which Oracle's support finds it.
"""

import datetime
import email.utils
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError

SKEW_SEC = 300.0  # by how much a request's date may be wrong


@dataclass(frozen=True, kw_only=True)
class ServiceCall:
    """A request in words: `doing` as in `listing clusters`, and the right it needs, as in `read clusters`."""

    doing: str
    right: str


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks: the credentials in words, the kind of principal, and where its policies would be."""

    credentials: str
    region: str
    scope: str = "tenancy"  # of a policy's statement: `tenancy`, or `compartment id ocid1...`
    is_instance: bool = False

    def statement(self, right: str) -> str:
        who = "dynamic-group DYNAMIC-GROUP" if self.is_instance else "group GROUP"
        return f"Allow {who} to {right} in {self.scope}"


class NotFound(UsageError):
    """The API says 404: not there, or not to be seen."""


def explain(
    asked: ServiceCall,
    asker: Caller,
    *,
    status: int,
    code: str | None,
    message: object,
    headers: Mapping[str, str],
    request_id: str | None,
    now: datetime.datetime,
) -> TaskFailed:
    """The task's error for the API's answer."""
    said = " ".join(str(message or "no message").split())[:300]
    what = f"{asked.doing}: {status} {code or ''}".rstrip()
    number = f" (request {request_id})" if request_id else ""
    needs = f"the policy that is needed: {asker.statement(asked.right)}"
    if status == 401:
        skewed = skew(headers, now)
        if skewed is not None:
            return UsageError(f"{what}: {skewed}; set it (timedatectl set-ntp true), then the same again{number}")
        known = (
            "is it in a dynamic group"
            if asker.is_instance
            else "is its key still uploaded (console: User settings, API keys)"
        )
        return UsageError(
            f"{what}: {asker.credentials} is not accepted in {asker.region}: {said}; {known}, and the tenancy "
            f"subscribed to the region?{number}"
        )
    if "limitexceeded" in (code or "").lower() or (code or "").lower() == "quotaexceeded":
        return UsageError(f"{what}: {said}; use less, or ask for more (console: Limits, Quotas and Usage){number}")
    if status == 403:
        return UsageError(f"{what}: {said}; {needs}{number}")
    if status == 404:
        return NotFound(f"{what}: {said}; it is not there, or this user may not see it: {needs}{number}")
    if status in (409, 412):
        return ConfirmationRequired(
            f"{what}: {said}; somebody changes it too, or did: look, then the same again{number}"
        )
    if status == 429 or status >= 500:
        return RetryableError(f"{what}: {said}; asked several times; the same again later{number}")
    return UsageError(f"{what}: {said}{number}")


def skew(headers: Mapping[str, str], now: datetime.datetime) -> str | None:
    """By how much this machine's clock is wrong, in words, where that is why a signature is refused."""
    try:
        theirs = email.utils.parsedate_to_datetime(headers.get("date") or headers.get("Date") or "")
        off = (now - theirs).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    if abs(off) <= SKEW_SEC:
        return None
    return (
        f"this machine's clock is {abs(off) / 60:.0f} min {'ahead' if off > 0 else 'behind'}, and signatures are dated"
    )
