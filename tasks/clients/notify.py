"""Receivers of a run's notifications, from the settings: a program of the operator's, a webhook."""

import shutil
from collections.abc import Mapping

from bench.notify import webhook
from bench.notify.sender import Deliver, to_webhook
from bench.notify.webhook import WebhookError
from bench.records.run import NotifyTarget
from remote.hosts.base import CommandTimedOut, TooMuchOutput
from remote.hosts.command import Secret
from remote.hosts.process import CannotStart, run_program
from tasks.clients.secrets import read_secret
from tasks.errors import UsageError, escape_controls, translate_errors
from tasks.settings.load import Settings

COMMAND_TIMEOUT_SEC = 60.0


class CommandFailed(Exception):
    """A program of notify.command that did not exit with 0."""


def webhook_target(
    settings: Settings, *, usd_per_sec: float | None = None, budget_usd: float | None = None
) -> NotifyTarget | None:
    """Return the webhook of notify.url; None if it is not set. Raises UsageError.

    `usd_per_sec` is the price of all workers together.
    """
    section = settings.notify
    if section.url is None:
        if section.key_file is not None:
            raise UsageError("notify.key_file: signs what is sent to notify.url, which is null", remedy="set it, too")
        return None
    with translate_errors(UsageError, WebhookError, prefix="notify.url: "):
        webhook.check_url(section.url)
    return NotifyTarget(
        url=section.url,
        allow_private=section.allow_private,
        allow_redirects=section.allow_redirects,
        stalled_sec=section.stalled_sec,
        usd_per_sec=usd_per_sec,
        budget_usd=budget_usd,
    )


def webhook_key(settings: Settings) -> Secret | None:
    """Read notify.key_file; None if it is not set. Raises UsageError."""
    name = settings.notify.key_file
    return None if name is None else read_secret(settings, "notify.key_file", name)


def receivers(settings: Settings) -> Mapping[str, Deliver]:
    """Return the deliveries by the name of their setting; empty if none is set. Raises UsageError."""
    deliveries: dict[str, Deliver] = {}
    if (target := webhook_target(settings)) is not None:
        key = webhook_key(settings)
        deliveries["notify.url"] = to_webhook(target, None if key is None else key.reveal().encode())
    if settings.notify.command:
        argv = tuple(settings.notify.command)
        deliveries["notify.command"] = lambda body: _run_command(argv, body)
    return deliveries


def check_receivers(settings: Settings) -> None:
    """Raise UsageError for a receiver that cannot work: later, a failure to notify does not fail a run."""
    receivers(settings)
    for program in (settings.notify.command or [])[:1]:
        if shutil.which(program) is None:
            raise UsageError(f"notify.command: {program}: no such program", remedy="install it, or correct the setting")


def _run_command(argv: tuple[str, ...], body: bytes) -> None:
    """Run the program with the notification on its standard input. Raises CommandFailed."""
    try:
        completed = run_program(argv, label=argv[0], stdin=body, timeout_sec=COMMAND_TIMEOUT_SEC)
    except (CannotStart, CommandTimedOut, TooMuchOutput) as error:
        raise CommandFailed(escape_controls(str(error))) from error
    if completed.exit_code != 0:
        last = completed.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CommandFailed(escape_controls(": ".join((f"{argv[0]}: exit code {completed.exit_code}", *last))))
