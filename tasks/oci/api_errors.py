"""Translation of the errors of Oracle's SDK into a task's error with action, reason and remedy.

The API answers 404 both for a missing object and for missing permission, so the message names both. Every message
contains the request id, which Oracle's support needs.
"""

from oci.exceptions import ClientError, ServiceError

from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError

# Errors of the SDK without a complete answer. Its RequestException is an OSError.
TRANSPORT_ERRORS = (OSError, ClientError, RuntimeError)


def to_task_error(error: ServiceError, action: str, *, if_rejected: str, if_denied: str) -> TaskFailed:
    """Build the task's error for an error response; two remedies: for the credentials and for a missing permission."""
    code = str(error.code or "")  # a gateway may send a number
    problem = f"{action}: {error.status} {code}".rstrip() + f": {one_line(error.message or 'no message')}"
    request_note = f" (request {error.request_id})" if error.request_id else ""
    if error.status == 401:
        return UsageError(problem, remedy=f"{if_rejected}{request_note}")
    if code.lower().endswith(("limitexceeded", "quotaexceeded")):
        return UsageError(
            problem, remedy=f"use less, or request more (console: Limits, Quotas and Usage){request_note}"
        )
    if error.status == 403:
        return UsageError(problem, remedy=f"{if_denied}{request_note}")
    if error.status == 404:
        return UsageError(
            f"{problem}; it does not exist, or is not visible to this user", remedy=f"{if_denied}{request_note}"
        )
    if error.status in (409, 412):
        return ConfirmationRequired(problem, remedy=f"it was modified concurrently: check it, then retry{request_note}")
    if error.status == 429 or error.status >= 500:
        return RetryableError(problem, remedy=f"tried several times; retry later{request_note}")
    return UsageError(f"{problem}{request_note}")


def root_cause(error: BaseException) -> str:
    """Return the innermost error's message on one line. Its URL has no secret: signatures are in headers."""
    cause = getattr(error, "reason", None) or next(iter(error.args), None)
    return root_cause(cause) if isinstance(cause, BaseException) else one_line(error) or type(error).__name__


def one_line(text: object) -> str:
    """Return the start of a text from outside, on one line."""
    return " ".join(str(text).split())[:200]
