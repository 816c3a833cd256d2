"""`inv init`: ask for the settings that every set-up needs, check each answer, and write them to ~/.invoke.yaml."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any

from invoke.context import Context
from rich.text import Text

from reports.formatting import escape_text
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.terminal import confirm, console, read_line
from tasks.commands import InitOptions
from tasks.doctor.check import Check, CheckContext, run_checks
from tasks.doctor.checks import cluster, runs, vm
from tasks.doctor.doctor import print_subject
from tasks.errors import ConfirmationRequired, UsageError
from tasks.faults import CheckStatus
from tasks.settings.layers import Settings, load
from tasks.settings.sources import Keys, display_path, set_value
from tasks.settings.user_config import plan_user_settings, write_user_settings

Values = dict[Keys, str]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One setting to ask for: its field of InitOptions, its checks, and what else follows from an answer."""

    flag: str
    keys: Keys
    checks: Sequence[Check] = ()
    also: Mapping[Keys, str] = field(default_factory=dict)

    def values(self, answer: str) -> Values:
        return {self.keys: answer, **self.also}


QUESTIONS = (
    Question(flag="provider", keys=("cluster", "provider")),
    Question(flag="build_host", keys=("build", "host"), checks=vm.CHECKS[:1]),
    Question(flag="registry_user", keys=("registry", "user")),
    Question(flag="registry", keys=("registry", "image"), checks=vm.REGISTRY_CHECKS[:1]),
    Question(
        flag="cluster",
        keys=("cluster", "context"),
        checks=cluster.CHECKS[:1],
        also={("fleet", "kind"): "pods", ("bench", "profile"): "gpu"},
    ),
    Question(flag="model", keys=("model", "path")),
    Question(flag="data", keys=("data", "path"), checks=runs.MODEL_CHECKS),
)
TEXTS = {field.name: field.metadata["flag"].help for field in fields(InitOptions)}


def initialize(context: Context, options: InitOptions) -> CommandResult | None:
    """Write the answers to ~/.invoke.yaml after showing the difference.

    Raises UsageError for an invalid answer, and without a terminal and flags; ConfirmationRequired if not confirmed.
    """
    is_asking = sys.stdin.isatty() and sys.stdout.isatty() and not options.yes
    if not is_asking and not any(getattr(options, question.flag) for question in QUESTIONS):
        flags = ", ".join(f"--{question.flag.replace('_', '-')}" for question in QUESTIONS)
        raise UsageError("init: there is no terminal to ask on", remedy=f"pass some of {flags}")
    values: Values = {}
    for question in QUESTIONS:
        answer = getattr(options, question.flag)
        if answer is not None:
            values |= question.values(answer)
            _check(_settings_with(context, values), context, question)
        elif is_asking:
            values = _ask(context, values, question)
    return _write(values, options)


def _ask(context: Context, values: Values, question: Question) -> Values:
    """Ask until an answer is valid, and accepted by its checks or by the operator. Enter keeps the present value."""
    while True:
        present: Any = reduce(getattr, question.keys, _settings_with(context, values))
        shown = "none" if present is None else present
        try:
            answer = read_line(f"{TEXTS[question.flag]} [{shown}]: ")
        except EOFError as error:
            raise ConfirmationRequired("nothing was written: the input ended", remedy="rerun `inv init`") from error
        if not answer:
            return values
        changed = values | question.values(answer)
        try:
            settings = _settings_with(context, changed)
        except UsageError as error:
            print(escape_text(str(error)))
            continue
        if _check(settings, context, question) or confirm("Use this answer all the same?"):
            return changed


def _settings_with(context: Context, values: Values) -> Settings:
    """Load the settings as they would be with these values. Raises UsageError for an invalid one."""
    config = context.config.clone()
    config._set(typed_settings={keys: ("init", value) for keys, value in values.items()})
    return load(Context(config))


def _check(settings: Settings, context: Context, question: Question) -> bool:
    """Run the question's checks and print their results. Returns whether none failed."""
    if question.checks is runs.MODEL_CHECKS and settings.connector.is_cluster:
        return True  # the pods that would look are not deployed yet
    subjects = frozenset(check.subject for check in question.checks)
    check_context = CheckContext(settings, context.config, subjects)
    outcomes = list(run_checks(question.checks, check_context))
    check_context.close()
    if outcomes:
        print_subject(console(), outcomes, max(len(check.title) for check in question.checks))
    return not any(result.status is CheckStatus.FAIL for _, results in outcomes for result in results)


def _write(values: Values, options: InitOptions) -> CommandResult | None:
    document: dict[str, Any] = {}
    for keys, value in values.items():
        set_value(document, keys, value)
    path, old, new = plan_user_settings(document)
    screen = console()
    names = (display_path(path), f"{display_path(path)} (new)")
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm=""):
        screen.print(Text(line, style={"+": "green", "-": "red"}.get(line[:1], "")))
    if options.dry_run:
        line = f"{'keep' if old == new else 'write'}  {display_path(path)}"
        return plan_result([line], file=str(path), changes=old != new, settings=document)
    if old != new and not options.yes and not confirm(f"Write {display_path(path)}?"):
        raise ConfirmationRequired("nothing was written", remedy="pass --yes to confirm")
    for line in write_user_settings(document):
        print(line)
    print("`inv doctor` checks the whole set-up")
    return None
