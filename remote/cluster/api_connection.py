"""API client of a target: credentials, proxies and impersonation like kubectl's."""

import base64
import errno
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from remote.cluster.credential_cache import Credentials, credentials_of, private_folder
from remote.cluster.kubeconfig import Target
from remote.hosts.host_protocol import collapse_whitespace, is_loopback
from remote.hosts.pods.kubectl import Misconfigured, Unreachable

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

_HEADER_NAME = "!#$&'*+-.^_`|~"  # that a name may hold, like letters and digits (RFC 9110)


def connect(target: Target) -> "ApiClient":
    """Make a client for the target; runs its credential program.

    Raises Misconfigured if there are no credentials, and Unreachable if the disk for a kubeconfig's keys is full.
    """
    from kubernetes.client import ApiClient, Configuration  # 0.2 s to import
    from kubernetes.config import ConfigException, load_kube_config_from_dict
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

    user = dict(target.user_config)
    credential = credentials_of(target).status() if user.pop("exec", None) else {}
    user |= {"token": credential["token"]} if "token" in credential else {}
    for theirs, ours in (("clientCertificateData", "client-certificate-data"), ("clientKeyData", "client-key-data")):
        if theirs in credential:
            user[ours] = base64.b64encode(str(credential[theirs]).encode()).decode()
    configuration = Configuration()
    configuration.retries = False  # urllib3 would try a dead server four times
    try:
        load_kube_config_from_dict(  # type: ignore[no-untyped-call]
            {**target.config, "users": [{"name": target.user, "user": user}]},
            client_configuration=configuration,
            temp_file_path=str(private_folder()),
        )
        if "proxy-url" not in target.cluster_config and is_loopback(urlsplit(target.server).hostname):
            configuration.proxy = None  # like kubectl; over plain HTTP a proxy would read the token
        if not configuration.verify_ssl:
            disable_warnings(InsecureRequestWarning)  # for each request; `Target` says it once
        client = ApiClient(configuration)
    except (ConfigException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # writing a key file
            raise Unreachable(
                f"{private_folder()}: no space left on the disk", remedy="free some, then retry"
            ) from error
        raise Misconfigured(
            f"context {target.context}: {collapse_whitespace(error)}", remedy="fix the kubeconfig"
        ) from error
    except (AttributeError, TypeError) as error:  # a number instead of text; the client's message may hold the value
        raise Misconfigured(
            f"context {target.context}: a value is not text", remedy="put quotes around it in the kubeconfig"
        ) from error
    if "token" in credential:
        configuration.refresh_api_key_hook = partial(  # type: ignore[assignment]
            _renew_token, credentials_of(target)
        )
    if configuration.api_key:
        _check_encrypted(target, str(configuration.host))
    return client


def _renew_token(credentials: Credentials, configuration: "Configuration") -> None:
    configuration.api_key["BearerToken"] = f"Bearer {credentials.status()['token']}"


def impersonation_headers(target: Target) -> list[tuple[str, str]]:
    """Return the headers of the kubeconfig's `as`, `as-uid`, `as-groups` and `as-user-extra`, like client-go.

    Raises Misconfigured like kubectl if there is no `as`.
    """
    user = target.user_config
    headers = [("Impersonate-Uid", user["as-uid"])] if user.get("as-uid") else []
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    headers += [
        (f"Impersonate-Extra-{quote(key, safe=_HEADER_NAME)}", value)
        for key, values in (user.get("as-user-extra") or {}).items()
        for value in values
    ]
    if user.get("as"):
        return [("Impersonate-User", user["as"]), *headers]
    if headers:
        raise Misconfigured(
            f"context {target.context}: user {target.user} impersonates groups but no user",
            remedy="add `as` to the user in the kubeconfig",
        )
    return []


def _check_encrypted(target: Target, server: str) -> None:
    """Raise Misconfigured if credentials would travel over plain HTTP, where kubectl omits them."""
    parts = urlsplit(server)
    if parts.scheme != "https" and not is_loopback(parts.hostname):
        raise Misconfigured(
            f"context {target.context}: the credentials of {target.user} would travel over plain HTTP to {server}",
            remedy="set the cluster's server to https://... in the kubeconfig",
        )
