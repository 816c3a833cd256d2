"""`python -m tasks.oci token ...`: what kubectl runs for a token, as its kubeconfig says.

`inv tenancy.kubeconfig` writes that kubeconfig. Prints an ExecCredential, and nothing else. Whoever runs it
has no terminal, so it never asks for a pass phrase.
"""

import argparse
import datetime
import json
import sys
import time

from remote.hosts.local import expanded
from tasks.errors import TaskFailed
from tasks.oci.access.optional_sdk import needs_sdk
from tasks.oci.access.profile import read_profile
from tasks.oci.access.signing import TOKEN_MINUTES, Signature, cluster_token, signature_of

API_VERSION = "client.authentication.k8s.io/v1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.oci")
    verbs = parser.add_subparsers(required=True)
    of_user = verbs.add_parser("token", help="a cluster's token, with a profile's key")
    of_user.add_argument("--config-file", default="~/.oci/config")
    of_user.add_argument("--profile", default="DEFAULT")
    of_user.set_defaults(act=as_user)
    of_machine = verbs.add_parser("instance-token", help="a cluster's token, as an instance of the tenancy")
    of_machine.set_defaults(act=as_instance)
    for one in (of_user, of_machine):
        one.add_argument("--cluster", required=True, help="the cluster's OCID")
        one.add_argument("--host", required=True, help="of the service, containerengine.REGION.oraclecloud.com")
        one.add_argument("--region", required=True)
    given = parser.parse_args()
    try:
        signature: Signature = given.act(given)
    except TaskFailed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    now = datetime.datetime.now(datetime.timezone.utc)
    until = now + datetime.timedelta(minutes=TOKEN_MINUTES)
    secret = cluster_token(given.host, given.cluster, signature, now)
    status = {"token": secret.reveal(), "expirationTimestamp": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
    print(json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}))
    return 0


def as_user(given: argparse.Namespace) -> Signature:
    file = expanded(given.config_file)
    return signature_of(read_profile(file, given.profile, region=given.region, now=time.time()), lambda _: None)


def as_instance(_: argparse.Namespace) -> Signature:
    with needs_sdk():
        from tasks.oci.access.instance import instance_signer

    signer = instance_signer()
    return Signature(key_id=signer.api_key, key=signer.private_key)


if __name__ == "__main__":
    sys.exit(main())
