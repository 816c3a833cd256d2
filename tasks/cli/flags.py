"""Commands and their flags. Each flag is declared once: its name, type, default, help and range.

Invoke's arguments and the values that a command's function gets are made from the declaration, which is `switch()`,
`text()`, `number()`, `words()` or `positional()`. A command with many flags has them in a dataclass, and its function
gets an instance. Others have them as keywords of `Command`, and their function gets them by these names. --json is not
declared: it follows from the effect of the command.
"""

import contextlib
import copy
import dataclasses
import enum
import functools
import importlib
import itertools
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from invoke.context import Context
from invoke.parser.argument import Argument
from invoke.tasks import Task

from bench.records.validation import Setting
from tasks.cli.command_result import Effect, deliver
from tasks.errors import UsageError


class CommandArgument(Argument):
    """Invoke's argument, which may end where the name of a task begins."""

    ends_at_task = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the value, which parsing sets; a parser copies every argument of every task."""
        new = copy.copy(self)
        new._value = list(self._value) if isinstance(self._value, list) else self._value
        return new


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of a command. `name` is given where it differs from the parameter's.

    `kind` is what the function gets: bool, str, int, float or tuple. Invoke gets numbers as text, because its own
    conversion ends in a traceback. `value` names a value in the help: `--tmpdir=FOLDER`. `unset` says there what holds
    without the flag, if that is not `default`, such as a setting. A flag of a `setting` replaces its value for this
    command; the function gets it with the settings.
    """

    kind: type
    help: str
    default: Any = None
    name: str = ""
    value: str = ""
    unset: str = ""
    setting: str = ""
    is_positional: bool = False
    is_value_optional: bool = False
    range: Setting | None = None

    def argument(self, name: str) -> Argument:
        """Return Invoke's argument for this flag, typed as `name`."""
        kind: type = bool if self.kind is bool else list if self.kind is tuple else str
        argument = CommandArgument(
            name=name,
            attr_name=name.replace("-", "_") if "-" in name else None,
            kind=kind,
            default=None if kind is str else kind(),
            positional=self.is_positional,
            optional=self.is_value_optional,
        )
        argument.ends_at_task = bool(self.setting)
        return argument

    @property
    def full_help(self) -> str:
        """Return the help with the type and range of a number, and with what holds without the flag."""
        is_number, unset = self.kind in (int, float), self.unset or self.setting
        if not unset and self.default and self.kind is not bool:
            unset = f"{self.default:.12g}" if is_number else str(self.default)
        parts = (
            self.range.values if self.range is not None else "",
            "repeatable" if self.kind is tuple else "",
            unset and f"default: {unset}",
        )
        notes = "; ".join(filter(None, parts))
        if notes and self.help.endswith(")"):
            return f"{self.help[:-1]}; {notes})"
        return f"{self.help} ({notes})" if notes else self.help

    def parse(self, label: str, value: Any) -> Any:
        """Convert the value from Invoke, None for the default. Raises UsageError that begins with `label`."""
        if value is None or (self.is_positional and value == ""):  # tasks.cli.parser gives "" for a missing one
            return self.default
        if self.kind is tuple:
            return tuple(value)
        if self.range is None:
            return value
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if self.range.problem(number) is not None or (self.kind is int and not number.is_integer()):
            raise UsageError(f"{label}: expected {self.range.values}, found {value!r}")
        return self.kind(number)


def _declare(kind: type, default: Any, rules: Mapping[str, Any]) -> Any:
    flag = Flag(kind=kind, default=default, **rules)
    return dataclasses.field(default=default, metadata={"flag": flag})


def switch(help: str, **rules: Any) -> Any:  # noqa: A002
    """Declare a flag without a value: False, and True if it is typed. `rules` are further fields of Flag."""
    return _declare(bool, False, {"help": help, **rules})


def text(help: str, default: str | None = None, **rules: Any) -> Any:  # noqa: A002
    """Declare a flag with text. With `is_value_optional`, it is True if it is typed without a value."""
    return _declare(str, default, {"help": help, **rules})


def positional(help: str, *, is_required: bool = True, **rules: Any) -> Any:  # noqa: A002
    """Declare an argument that needs no flag; None without it if it is not required."""
    return _declare(str, None, {"help": help, "is_positional": True, "is_value_optional": not is_required, **rules})


def number(
    kind: type,
    help: str,  # noqa: A002
    default: float | None = None,
    *,
    unset: str = "",
    value: str = "",
    **bounds: Any,
) -> Any:
    """Declare a flag with a number of this kind, int or float; `bounds` are fields of Setting."""
    declared = Setting(name="", kind=kind, is_nullable=False, **bounds)
    return _declare(kind, default, {"help": help, "range": declared, "unset": unset, "value": value})


def words(help: str, **rules: Any) -> Any:  # noqa: A002
    """Declare a repeatable flag: a tuple of texts."""
    return _declare(tuple, (), {"help": help, **rules})


class Section(enum.Enum):
    """Heading of commands in `inv --list`."""

    SET_UP = "Set up"
    BUILD = "Build: image, models, build VM"
    CLUSTER = "Cluster"
    BENCHMARK = "Benchmark, and follow any run"
    TRAIN = "Train"
    AFTER = "After: reports, adapters, servers"
    TENANCY = "Tenancy of Oracle Cloud"


_ORDER = itertools.count()
_JSON = "print one JSON object; other output goes to standard error"
_JSON_PLAN = "with --dry-run: print the plan as one JSON object"


class Command(Task[Any]):
    """Task of Invoke whose flags are declared.

    `name` begins with its group: `adapter.check`. `target` is its function, as "module:function", imported when the
    command runs, so that `inv --list` is fast; `guard` is around this import. The function gets the context, then
    `options`, a dataclass of flags, or the flags by name, and returns its CommandResult or None. `doc` is the help,
    whose first line `inv --list` shows below the heading of `section`; each of `examples` is a command line with a
    comment, of what the flags do not say. `settings` are flags of settings, with `options` too. `is_daily` says that a
    plain `inv --list` has it.
    """

    def __init__(
        self,
        name: str,
        target: str,
        doc: str,
        /,
        *,
        section: Section,
        effect: Effect,
        examples: tuple[str, ...] = (),
        options: type | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        is_default: bool = False,
        is_daily: bool = False,
        guard: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        **flags: Any,
    ) -> None:
        self.full_name, self.target, self.options, self._guard = name, target, options, guard
        fields = {field.name: field for field in dataclasses.fields(options)} if options is not None else flags
        declared = {**fields, **settings}
        self.flags: dict[str, Flag] = {parameter: field.metadata["flag"] for parameter, field in declared.items()}
        self.section, self.effect, self.examples = section, effect, examples
        self.is_daily, self.order = is_daily, next(_ORDER)
        # A partial has no __code__, by which Invoke would take two commands of one name for the same.
        super().__init__(functools.partial(self._run), name.rpartition(".")[2], positional=(), default=is_default)
        self.__doc__ = doc

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return this command: a declaration is not changed, and Invoke copies every task when it starts."""
        return self

    @property
    def group(self) -> str:
        """Name of the collection; empty for a command outside any."""
        return self.full_name.rpartition(".")[0]

    @property
    def shown_name(self) -> str:
        """The name to type: that of the group for its default command."""
        return self.group if self.is_default else self.full_name

    @property
    def summary(self) -> str:
        """The first line of the help."""
        return (self.__doc__ or "").partition("\n")[0]

    @property
    def typed_flags(self) -> dict[str, Flag]:
        """The flags by the name that is typed, --json too."""
        flags = {(flag.name or name).replace("_", "-"): flag for name, flag in self.flags.items()}
        if self.effect is not Effect.SESSION:
            flags["json"] = Flag(kind=bool, help=_JSON if self.effect.shows else _JSON_PLAN, default=False)
        return flags

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:  # noqa: ARG002
        """Return the arguments for Invoke's parser."""
        return [flag.argument(name) for name, flag in self.typed_flags.items()]

    def _run(self, context: Context, *positional: str, **typed: Any) -> None:
        as_json = bool(typed.pop("json", False))
        typed |= zip(self.flags, positional, strict=False)
        values, replaced = {}, {}
        for parameter, flag in self.flags.items():
            name = flag.name or parameter
            label = f"{self.full_name}: --{name.replace('_', '-')}"
            value = flag.parse(label, typed.pop(name, None))
            if not flag.setting:
                values[parameter] = value
            elif value is not None and value is not False:
                replaced[tuple(flag.setting.split("."))] = (label, "true" if value is True else value)
        if typed:
            raise TypeError(f"{self.full_name}: no such flags: {', '.join(typed)}")
        if replaced and values.get("resume"):
            labels = " and ".join(label.rpartition(" ")[2] for label, _ in replaced.values())
            raise UsageError(f"{self.full_name}: --resume uses the plan of the run", remedy=f"leave out {labels}")
        context.config._set(typed_settings=replaced)
        is_dry_run = bool(values.get("dry_run"))
        if as_json and not self.effect.shows and not is_dry_run:
            raise UsageError(f"{self.full_name}: --json prints the plan", remedy="pass --dry-run with --json")
        out = sys.stdout
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            with self._guard():
                run = load_target(self.target)
            answer = run(context, **values) if self.options is None else run(context, self.options(**values))
            deliver(answer, f"{self.full_name}.plan" if is_dry_run else self.full_name, out, as_json=as_json)


def load_target(target: str) -> Any:
    """Import the function "module:function", whose libraries take time, when it is needed."""
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


def refuse_several(task: str, flags: Mapping[str, object]) -> None:
    """Raise UsageError if more than one of these flags is set: each value that is not None or False counts."""
    names = [name for name, value in flags.items() if value is not None and value is not False]
    if len(names) > 1:
        raise UsageError(f"{task}: {' and '.join(names)} exclude each other", remedy="pass only one of them")


def format_command(task: str, **flags: object) -> str:
    """Return the command of a task with these flags, to be typed again; a flag that is None or False is left out."""
    argv = ["inv", task]
    for name, value in flags.items():
        if value is not None and value is not False:
            argv += [f"--{name.replace('_', '-')}", *(() if value is True else (str(value),))]
    return shlex.join(argv)


def parse_names(flag: str, values: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Split the values of a flag at commas, without duplicates. Raises UsageError for a name that is not `known`."""
    names = dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} {name}: expected one of {', '.join(known)}")
    return tuple(names)
