"""Retries of Oracle's API, and the translation of its errors into a task's error with operation, reason and remedy.

The API answers 404 both for a missing object and for missing permission, so the message names both. Every message
contains the request id, which Oracle's support needs.
"""

import datetime
import email.utils
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jwt import PyJWTError
from oci.auth.certificate_retriever import InvalidCertificateFromInstanceMetadataError
from oci.retry import RetryStrategyBuilder

from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError

MAX_CLOCK_SKEW_SEC = 300.0  # tolerance of the service for a request's date
# Errors of the SDK when it requests a token, also while it signs a request: an invalid certificate or token.
TOKEN_ERRORS = (RuntimeError, PyJWTError, InvalidCertificateFromInstanceMetadataError)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A request's description: its action, e.g. `listing clusters`, and its permission, e.g. `read clusters`."""

    action: str
    permission: str


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of the API: a description of its credentials, and its region."""

    credentials: str
    region: str
    is_instance: bool = False

    def policy_statement(self, permission: str) -> str:
        subject = "dynamic-group DYNAMIC-GROUP" if self.is_instance else "group GROUP"
        return f"Allow {subject} to {permission} in tenancy"


class ApiNotFound(UsageError):
    """Error for status 404: the object is missing or not visible to the caller."""


def to_task_error(
    operation: Operation,
    caller: Caller,
    *,
    status: int,
    code: str | None,
    message: object,
    headers: Mapping[str, str],
    request_id: str | None,
    now: datetime.datetime,
) -> TaskFailed:
    """Build the task's error for an API error response."""
    reason = " ".join(str(message or "no message").split())[:300]
    problem = f"{operation.action}: {status} {code or ''}".rstrip()
    request_note = f" (request {request_id})" if request_id else ""
    policy_remedy = f"required policy: {caller.policy_statement(operation.permission)}"
    if status == 401:
        skewed = describe_clock_skew(headers, now)
        if skewed is not None:
            return UsageError(
                f"{problem}: {skewed}", remedy=f"set it (timedatectl set-ntp true), then retry{request_note}"
            )
        likely_cause = (
            "is it in a dynamic group"
            if caller.is_instance
            else "is its key still uploaded (console: User settings, API keys)"
        )
        return UsageError(
            f"{problem}: {caller.credentials} is not accepted in {caller.region}: {reason}",
            remedy=f"{likely_cause}, and is the tenancy subscribed to the region?{request_note}",
        )
    if "limitexceeded" in (code or "").lower() or (code or "").lower() == "quotaexceeded":
        return UsageError(
            f"{problem}: {reason}",
            remedy=f"use less, or request more (console: Limits, Quotas and Usage){request_note}",
        )
    if status == 403:
        return UsageError(f"{problem}: {reason}", remedy=f"{policy_remedy}{request_note}")
    if status == 404:
        return ApiNotFound(
            f"{problem}: {reason}; it does not exist, or is not visible to this user: {policy_remedy}{request_note}"
        )
    if status in (409, 412):
        return ConfirmationRequired(
            f"{problem}: {reason}", remedy=f"it was modified concurrently: check it, then retry{request_note}"
        )
    if status == 429 or status >= 500:
        return RetryableError(f"{problem}: {reason}", remedy=f"tried several times; retry later{request_note}")
    return UsageError(f"{problem}: {reason}{request_note}")


def describe_clock_skew(headers: Mapping[str, str], now: datetime.datetime) -> str | None:
    """Describe this machine's clock skew against the server; None if it is too small to invalidate a signature."""
    try:
        server_time = email.utils.parsedate_to_datetime(headers.get("date") or headers.get("Date") or "")
        offset_sec = (now - server_time).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    if abs(offset_sec) <= MAX_CLOCK_SKEW_SEC:
        return None
    direction = "ahead" if offset_sec > 0 else "behind"
    return f"this machine's clock is {abs(offset_sec) / 60:.0f} min {direction}, and signatures contain the date"


def retry_strategy(max_attempts: int, max_total_sec: float, max_pause_sec: float) -> Any:
    """Build the SDK's retry strategy."""
    return RetryStrategyBuilder(
        max_attempts=max_attempts,
        total_elapsed_time_seconds=max_total_sec,
        retry_max_wait_between_calls_seconds=max_pause_sec,
    ).get_retry_strategy()


def root_cause(error: BaseException) -> str:
    """Return the innermost error's message on one line. Its URL has no secret: signatures are in headers."""
    if isinstance(error, InvalidCertificateFromInstanceMetadataError):  # its message may contain a received key
        return "the metadata service returned no certificate; is a proxy intercepting the connection?"
    cause = getattr(error, "reason", None) or next(iter(error.args), None)
    return root_cause(cause) if isinstance(cause, BaseException) else one_line(error) or type(error).__name__


def one_line(text: object) -> str:
    """Return the start of a text from outside, on one line."""
    return " ".join(str(text).split())[:200]
