"""What the API server says when it says no: `Status` objects, worded as recorded from a real one."""

import marshal
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")
SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def copied(document: T) -> T:
    """A deep copy of what JSON can say, in a tenth of `copy.deepcopy`'s time."""
    return marshal.loads(marshal.dumps(document))  # type: ignore[no-any-return]  # noqa: S302


class Refusal(Exception):
    """A request that ends in a `Status` of `code` instead of an object."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
        }
        if reason:
            self.body["reason"] = reason
        if details:
            self.body["details"] = details
        self.body["code"] = code


def details(key: str, name: str, **more: Any) -> Json:
    """`key` is `pods` or `jobs.batch`, or a kind in their place."""
    plural, _, group = key.partition(".")
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": plural, **more}


def not_found(key: str, name: str) -> Refusal:
    """`key` is `pods` or `jobs.batch`."""
    return Refusal(404, "NotFound", f'{key} "{name}" not found', details(key, name))


def no_such_path() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(key: str, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{key} "{name}" already exists', details(key, name))


def stale(key: str, name: str) -> Refusal:
    message = (
        f'Operation cannot be fulfilled on {key} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return Refusal(409, "Conflict", message, details(key, name))


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def forbidden(key: str, name: str, why: str, **more: Any) -> Refusal:
    """Refused by admission: `pods "q" is forbidden: exceeded quota: ...`."""
    return Refusal(403, "Forbidden", f'{key} "{name}" is forbidden: {why}', details(key, name, **more))


def not_allowed(user: str, verb: str, key: str, subresource: str, namespace: str, name: str) -> Refusal:
    """Refused by RBAC."""
    plural, _, group = key.partition(".")
    what = f"{plural}/{subresource}" if subresource else plural
    scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    named = f'"{name}" ' if name else ""
    message = f'{key} {named}is forbidden: User "{user}" cannot {verb} resource "{what}" in API group "{group}" {scope}'
    return Refusal(403, "Forbidden", message, details(key, name))


def invalid(kind: str, group: str, name: str, causes: list[tuple[str, str, str]]) -> Refusal:
    """422; `causes` are (reason, message, field) as `FieldValueInvalid`, `Invalid value: ...`, `spec.x`."""
    what = f"{kind}.{group}" if group else kind
    said = [f"{field}: {message}" for _, message, field in causes]
    text = said[0] if len(said) == 1 else "[" + ", ".join(said) + "]"
    shown = [{"reason": reason, "message": message, "field": field} for reason, message, field in causes]
    return Refusal(422, "Invalid", f'{what} "{name}" is invalid: {text}', details(what, name, causes=shown))


def internal_error(message: str) -> Json:
    """The Status that an exec carries on its error channel when the infrastructure failed."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {message}",
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }
