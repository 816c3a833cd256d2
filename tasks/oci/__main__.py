"""`python -m tasks.oci token ...`: kubectl's credential plugin, configured by `inv tenancy.kubeconfig`.

Prints only an ExecCredential. It runs without a terminal, so it never prompts for a pass phrase.
"""

import argparse
import datetime
import json
import sys

from remote.hosts.local import expand_user
from tasks.errors import TaskFailed
from tasks.oci import require_sdk

API_VERSION = "client.authentication.k8s.io/v1"
TOKEN_LIFETIME_MINUTES = 4  # a minute less than the service accepts, so that the token is still valid on arrival


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.oci")
    parser.add_argument("command", choices=("token",), help="a cluster's token, with a profile's key")
    parser.add_argument("--config-file", default="~/.oci/config")
    parser.add_argument("--profile", default="DEFAULT")
    parser.add_argument("--cluster", required=True, help="the cluster's OCID")
    parser.add_argument("--host", required=True, help="the service's host, containerengine.REGION.oraclecloud.com")
    parser.add_argument("--region", required=True)
    arguments = parser.parse_args()
    expires_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=TOKEN_LIFETIME_MINUTES)
    try:
        token = _create_token(arguments)
    except TaskFailed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    status = {"token": token, "expirationTimestamp": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    print(json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}))
    return 0


def _create_token(arguments: argparse.Namespace) -> str:
    with require_sdk():
        from tasks.oci.credentials import cluster_token, read_profile
    file = expand_user(arguments.config_file)
    credentials = read_profile(file, arguments.profile, arguments.region, may_prompt=False)
    return cluster_token(credentials, arguments.host, arguments.cluster).reveal()


if __name__ == "__main__":
    sys.exit(main())
