"""Logs the build VM in to a registry; the record of a push."""

import json
import re

from remote.hosts.bundle import inline_command
from remote.hosts.command import Command, Secret
from remote.hosts.host import Host, HostError, HostUnreachable, LoginRefused, check
from remote.image.engine import Client, to_engine_error
from remote.image.references import USER_FORMS, Reference, is_ocir
from remote.image.vm_agent.client import trouble

LOGIN_FOLDER = "qlora-fleet-login-"
_LOGIN_SEC = 120.0


def log_in(host: Host, client: Client, registry: str, user: str, password: Secret) -> str:
    """Log the engine's client in, with a configuration folder of its own; returns that folder on the host.

    The caller removes the folder. Those that killed logins have left are removed first. The password goes over standard
    input. Raises LoginRefused, HostUnreachable for a registry that did not answer, EngineError, and as `Host.run`.
    """
    make = inline_command(host, "remote.image.vm_agent.scripts.login", LOGIN_FOLDER)
    folder = check(host, make, host.run(make, timeout_sec=_LOGIN_SEC)).stdout.decode().strip()
    login = Command(
        argv=(client.program, "--config", folder, "login", "--username", user, "--password-stdin", registry),
        environment=client.environment,
        secrets=(password,),
    )
    try:
        completed = host.run(login, stdin=password.reveal().encode(), timeout_sec=_LOGIN_SEC)
        if completed.exit_code == 0:
            return folder
        stderr = completed.stderr.decode(errors="replace")
        if completed.exit_code == 127 or trouble(stderr) is not None:
            raise to_engine_error(host, client, login, completed)
        complaint = login.tail(stderr, lines=1)
        if re.search(r"unauthorized|incorrect username|denied|\b401\b", complaint, re.IGNORECASE):
            forms = f"; its users are {USER_FORMS}, and the password is an auth token" if is_ocir(registry) else ""
            raise LoginRefused(f"{registry} refuses user {user}: {complaint}{forms}")
        raise HostUnreachable(f"{host.name}: logging in to {registry}: {complaint}")
    except BaseException:
        forget(host, folder)
        raise


def forget(host: Host, folder: str) -> None:
    """Remove a login's folder. Raises as `Host.run`."""
    if LOGIN_FOLDER not in folder:
        raise HostError(f"{folder} is not a folder of a login")
    command = Command(argv=("rm", "-rf", "--", folder))
    check(host, command, host.run(command, timeout_sec=_LOGIN_SEC))


def outcome_json(where: Reference, facts: dict[str, object], pushed_at: str) -> str:
    """results/image.json: what was pushed, and the digest that pods run."""
    document = {
        "schema_version": 1,
        "reference": str(where),
        "repository": where.repository,
        **{key: facts[key] for key in ("digest", "size_bytes", "compressed_bytes", "labels")},
        "requires": facts.get("requires"),
        "pushed_at": pushed_at,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
