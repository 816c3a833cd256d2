"""Whether the tenancy's credentials are there, whole and accepted; for whoever wants to know, such as a check-up.

To import this raises UsageError where Oracle's SDK is not installed.
"""

from dataclasses import dataclass

from tasks.settings.load import Settings
from tasks.tenancy.access.needed import needs_sdk

with needs_sdk():
    from tasks.tenancy.access.clients import access, namespace_of


@dataclass(frozen=True, kw_only=True)
class Login:
    """Credentials that the tenancy accepted."""

    credentials: str
    region: str
    namespace: str


def check_login(settings: Settings) -> Login:
    """Ask the tenancy for its namespace, which every user may know.

    Raises UsageError (exit 2): no configuration, a key that cannot be used, an expired session, refused credentials, a
    wrong clock; Resumable (exit 3): no answer within two minutes. The message is one line with what to type next.
    """
    entry = access(settings)
    return Login(credentials=entry.asker.credentials, region=entry.region, namespace=namespace_of(entry))
