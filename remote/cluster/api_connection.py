"""API client of a target, with credentials and proxies like kubectl's."""

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from remote.cluster.credential_cache import Credentials, credentials_of, private_folder
from remote.cluster.kubeconfig import Target
from remote.hosts.host_protocol import collapse_whitespace, is_loopback
from remote.hosts.pods.kubectl import Misconfigured

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration


def connect(target: Target) -> "ApiClient":
    """Make a client for the target; runs its credential program. Raises Misconfigured if there are no credentials."""
    from kubernetes.client import ApiClient, Configuration  # 0.2 s to import
    from kubernetes.config import ConfigException, load_kube_config_from_dict
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

    if any(target.user_config.get(key) for key in ("as", "as-uid", "as-groups", "as-user-extra")):
        raise Misconfigured(
            f"context {target.context}: user {target.user} impersonates another (`as`), which only kubectl can",
            remedy="set cluster.context to one with credentials of its own",
        )
    credentials = credentials_of(target)
    user = credentials.user()
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
        raise Misconfigured(
            f"context {target.context}: {collapse_whitespace(error)}", remedy="fix the kubeconfig"
        ) from error
    if "exec" in target.user_config and "token" in user:
        configuration.refresh_api_key_hook = partial(_renew_token, credentials)  # type: ignore[assignment]
    parts = urlsplit(str(configuration.host))
    if configuration.api_key and parts.scheme != "https" and not is_loopback(parts.hostname):  # kubectl omits them
        raise Misconfigured(
            f"context {target.context}: the credentials of {target.user} would travel over plain HTTP to "
            f"{configuration.host}",
            remedy="set the cluster's server to https://... in the kubeconfig",
        )
    return client


def _renew_token(credentials: Credentials, configuration: "Configuration") -> None:
    configuration.api_key["BearerToken"] = f"Bearer {credentials.status()['token']}"
