"""Login of the build VM to a registry, and the record of a push."""

import json
import re

from remote.agent.shared.errors import engine_access_error
from remote.hosts.base import Host, HostError, HostUnreachable, LoginRefused, check
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command, Secret
from remote.image.engine import Client, to_engine_error
from remote.image.references import Reference
from remote.providers import registry_provider

LOGIN_FOLDER_PREFIX = "qlora-fleet-login-"
_LOGIN_TIMEOUT_SEC = 120.0


def log_in(host: Host, client: Client, registry: str, user: str, password: Secret) -> str:
    """Log the engine's client in, with a separate configuration folder. Returns that folder on the host.

    The caller removes the folder. Folders left by killed logins are removed first. The password goes over standard
    input. Raises LoginRefused, HostUnreachable if the registry did not respond, EngineError, and like `Host.run`.
    """
    make = inline_command(host, "remote.agent.scripts.login", LOGIN_FOLDER_PREFIX)
    folder = check(host, make, host.run(make, timeout_sec=_LOGIN_TIMEOUT_SEC)).stdout.decode().strip()
    login = Command(
        argv=(client.program, "--config", folder, "login", "--username", user, "--password-stdin", registry),
        environment=client.environment,
        secrets=(password,),
    )
    try:
        completed = host.run(login, stdin=password.reveal().encode(), timeout_sec=_LOGIN_TIMEOUT_SEC)
        if completed.exit_code == 0:
            return folder
        stderr = completed.stderr.decode(errors="replace")
        if completed.exit_code == 127 or engine_access_error(stderr) is not None:
            raise to_engine_error(host, client, login, completed)
        complaint = login.tail(stderr, lines=1)
        if re.search(r"unauthorized|incorrect username|denied|\b401\b", complaint, re.IGNORECASE):
            remedy = registry_provider(registry).texts["registry-login"]
            raise LoginRefused(f"{registry} refused user {user}: {complaint}", remedy=remedy)
        raise HostUnreachable(f"{host.name}: login to {registry} failed: {complaint}")
    except BaseException:
        remove_login(host, folder)
        raise


def remove_login(host: Host, folder: str) -> None:
    """Remove the folder of a login. Raises like `Host.run`."""
    if LOGIN_FOLDER_PREFIX not in folder:
        raise HostError(f"{folder} is not a login folder")
    command = Command(argv=("rm", "-rf", "--", folder))
    check(host, command, host.run(command, timeout_sec=_LOGIN_TIMEOUT_SEC))


def push_record_json(reference: Reference, facts: dict[str, object], pushed_at: str) -> str:
    """Serialise results/image.json: the pushed image and the digest that pods run."""
    document = {
        "schema_version": 1,
        "reference": str(reference),
        "repository": reference.repository,
        **{key: facts[key] for key in ("digest", "size_bytes", "compressed_bytes", "labels")},
        "requires": facts.get("requires"),
        "pushed_at": pushed_at,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
