"""`python -m tasks.oci token ...`: kubectl's credential plugin, configured by `inv tenancy.kubeconfig`.

Prints only an ExecCredential. It runs without a terminal, so it never prompts for a pass phrase.
"""

import argparse
import base64
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
    commands = parser.add_subparsers(required=True)
    user_command = commands.add_parser("token", help="a cluster's token, with a profile's key")
    user_command.add_argument("--config-file", default="~/.oci/config")
    user_command.add_argument("--profile", default="DEFAULT")
    instance_command = commands.add_parser("instance-token", help="a cluster's token, as an instance of the tenancy")
    for command in (user_command, instance_command):
        command.add_argument("--cluster", required=True, help="the cluster's OCID")
        command.add_argument("--host", required=True, help="the service's host, containerengine.REGION.oraclecloud.com")
        command.add_argument("--region", required=True)
    arguments = parser.parse_args()
    expires_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=TOKEN_LIFETIME_MINUTES)
    try:
        token = cluster_token(arguments)
    except TaskFailed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    status = {"token": token, "expirationTimestamp": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    print(json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}))
    return 0


def cluster_token(arguments: argparse.Namespace) -> str:
    """Create kubectl's token for an OKE cluster. Raises a task's error.

    The token is the base64 of a request's URL, with signature and date as parameters. The cluster sends that request,
    and the service identifies the signer. The service accepts the date for five minutes; until then the token grants
    the signer's access.
    """
    with require_sdk():
        import requests

        from tasks.oci.credentials import read_instance, read_profile
    if "profile" in arguments:
        file = expand_user(arguments.config_file)
        credentials = read_profile(file, arguments.profile, arguments.region, may_prompt=False)
    else:
        credentials = read_instance(None)
    url = f"https://{arguments.host}/cluster_request/{arguments.cluster}"
    request = requests.Request("GET", url, auth=credentials.signer).prepare()
    signed = {"authorization": request.headers["authorization"], "date": request.headers["date"]}
    request.prepare_url(url, signed)
    return base64.urlsafe_b64encode(str(request.url).encode()).decode()


if __name__ == "__main__":
    sys.exit(main())
