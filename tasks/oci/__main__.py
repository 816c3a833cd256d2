"""`python -m tasks.oci token ...`: kubectl's credential plugin, configured by `inv tenancy.kubeconfig`.

Prints only an ExecCredential. It runs without a terminal, so it never prompts for a pass phrase.
"""

import argparse
import datetime
import json
import sys
import time

from remote.hosts.local import expand_user
from tasks.errors import TaskFailed
from tasks.oci import require_sdk
from tasks.oci.credentials import TOKEN_LIFETIME_MINUTES, SigningKey, cluster_token, load_signing_key, read_profile

API_VERSION = "client.authentication.k8s.io/v1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.oci")
    commands = parser.add_subparsers(required=True)
    user_command = commands.add_parser("token", help="a cluster's token, with a profile's key")
    user_command.add_argument("--config-file", default="~/.oci/config")
    user_command.add_argument("--profile", default="DEFAULT")
    user_command.set_defaults(handler=load_user_key)
    instance_command = commands.add_parser("instance-token", help="a cluster's token, as an instance of the tenancy")
    instance_command.set_defaults(handler=load_instance_key)
    for command in (user_command, instance_command):
        command.add_argument("--cluster", required=True, help="the cluster's OCID")
        command.add_argument("--host", required=True, help="the service's host, containerengine.REGION.oraclecloud.com")
        command.add_argument("--region", required=True)
    arguments = parser.parse_args()
    try:
        signing_key: SigningKey = arguments.handler(arguments)
    except TaskFailed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    now = datetime.datetime.now(datetime.timezone.utc)
    expires_at = now + datetime.timedelta(minutes=TOKEN_LIFETIME_MINUTES)
    token = cluster_token(arguments.host, arguments.cluster, signing_key, now)
    status = {"token": token.reveal(), "expirationTimestamp": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    print(json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}))
    return 0


def load_user_key(arguments: argparse.Namespace) -> SigningKey:
    file = expand_user(arguments.config_file)
    return load_signing_key(
        read_profile(file, arguments.profile, region=arguments.region, now=time.time()), lambda _: None
    )


def load_instance_key(_: argparse.Namespace) -> SigningKey:
    with require_sdk():
        from tasks.oci.instance import create_instance_signer

    signer = create_instance_signer()
    return SigningKey(key_id=signer.api_key, key=signer.private_key)


if __name__ == "__main__":
    sys.exit(main())
