"""Files of a training's report: index.html, report.md, settings.json, steps.csv, evaluations.csv and two figures;
and trial.json if the training had a trial file.

The page is one file without scripts. All text from a run (prompts, answers, reasons) is untrusted and escaped.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from bench.records.atomic_files import write_atomic
from bench.records.score import TrainingScore
from bench.records.trial import Trial
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS, AUTO
from reports import formatting
from reports.figures.drawing.style import inline_svg
from reports.read.run import ReportWriteError, make_report_folder
from reports.training import goodput, loss_curves, score, summary
from reports.training.summary import TrainingReport

INDEX_FILE, LOSS_FIGURE, TIMELINE_FIGURE = "index.html", "figures/loss", "figures/course"
USE_COLUMNS = ("use", "hours", "share", "cost")
SCORE_COLUMNS = ("score", "before", "after", "difference in points", "rows")
ATTEMPT_COLUMNS = ("attempt", "leader", "workers", "resumed from step", "seconds lost", "dollars", "ended because")
TEMPLATES = Path(__file__).parents[1] / "output" / "templates"
_JINJA = jinja2.Environment(
    autoescape=True, loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The parts of a finished report that callers display."""

    index: Path
    headline: str
    lines: Sequence[summary.SummaryRow]
    predicted_and_actual: Sequence[tuple[str, str, str]]
    has_succeeded: bool


def build(run_folder: Path) -> Report:
    """Write the report of a training. Raises ReportError; ReportWriteError if its folder cannot be written."""
    training = summary.read(run_folder)
    repeats_trial_file = has_trial_file(training)
    drawn = {LOSS_FIGURE: loss_curves.draw(training), TIMELINE_FIGURE: loss_curves.draw_course(training)}
    contents = {
        "steps.csv": _csv(training, _steps(training)),
        "evaluations.csv": _csv(
            training, [dataclasses.asdict(evaluation) for evaluation in training.record.evaluations]
        ),
        "report.md": _markdown(training).encode(),
        SETTINGS_FILE: repeat_settings(training),
        **({TRIAL_FILE: repeat_trial(training)} if repeats_trial_file else {}),
        INDEX_FILE: formatting.escape_text(
            _html(training, {name: images[1] for name, images in drawn.items() if images is not None})
        ).encode(),
    }
    for name, images in drawn.items():
        if images is not None:
            contents |= {f"{name}.png": images[0], f"{name}.svg": images[1]}
    folder = make_report_folder(run_folder, "figures")
    try:
        for name, content in contents.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise ReportWriteError(folder, error) from error
    return Report(
        index=folder / INDEX_FILE,
        headline=summary.headline(training),
        lines=_lines(training),
        predicted_and_actual=summary.predicted_and_actual(training),
        has_succeeded=training.has_succeeded,
    )


def _html(training: TrainingReport, wide: Mapping[str, bytes]) -> str:
    narrow = {
        LOSS_FIGURE: loss_curves.draw(training, narrow=True),
        TIMELINE_FIGURE: loss_curves.draw_course(training, narrow=True),
    }
    drawings = {
        Path(name).name: [_inline(svg, name, "wide"), _inline(narrow[name][1], name, "narrow")]  # type: ignore[index]
        for name, svg in wide.items()
    }
    trial = training.run.planned[0].trial
    divided = goodput.uses(training)
    return _JINJA.get_template("training.html.j2").render(
        css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        run_id=training.run.run_id,
        profile=training.run.profile,
        headline=summary.headline(training),
        notes=summary.notes(training),
        tiles=summary.tiles(training),
        drawings=drawings,
        lines=_lines(training),
        compared=summary.predicted_and_actual(training),
        basis=_basis(training),
        commands=commands(training),
        data=training.record.data,
        files=_files(training),
        findings=summary.findings(training),
        heads=ATTEMPT_COLUMNS,
        attempts=_attempts(training),
        rejected=_rejected(training),
        answers=training.record.answers,
        score=training.record.score,
        score_heads=SCORE_COLUMNS,
        score_rows=[] if training.record.score is None else score.table(training.record.score),
        unscored=[] if training.record.score is None else _unscored(training.record.score),
        goodput=goodput.sentence(training, divided),
        use_heads=_use_heads(training),
        uses=_uses(training, divided),
        limit=None if trial.training is None else trial.training.answer_tokens,
    )


def _unscored(record: TrainingScore) -> list[tuple[str, str, str]]:
    return [(f"{row.row:,}", row.place, score.fault_text(row)) for row in record.unscored]


def _use_heads(training: TrainingReport) -> tuple[str, ...]:
    return USE_COLUMNS if training.price is not None else USE_COLUMNS[:-1]


def _uses(training: TrainingReport, divided: Sequence[goodput.Use]) -> list[tuple[str, ...]]:
    """Return a row for each use of the paid time: name, hours, share, and dollars if there is a price."""
    rows = [(use.name, formatting.number(use.seconds / 3600.0), f"{use.share * 100:.1f} %") for use in divided]
    if training.price is None:
        return list(rows)
    costs = [formatting.dollars(use.seconds / 3600.0 * training.price) for use in divided]
    return [(*row, cost) for row, cost in zip(rows, costs, strict=True)]


def _inline(svg: bytes, name: str, width: str) -> Markup:
    body = inline_svg(svg, f"{Path(name).name}-{width}").replace("<svg", f'<svg class="{width}"', 1)
    return Markup(body)  # noqa: S704 - matplotlib escaped its texts


def _markdown(training: TrainingReport) -> str:
    rows = [f"| {formatting.markdown(name)} | {formatting.markdown(value)} |" for name, value in _lines(training)]
    comparison = [
        f"| {name} | {predicted} | {actual} |" for name, predicted, actual in summary.predicted_and_actual(training)
    ]
    parts = [
        f"# {formatting.markdown(summary.headline(training))}",
        f"Run {training.run.run_id}, profile {training.run.profile}. "
        + " ".join(f"{formatting.markdown(note)}." for note in summary.notes(training)),
        "\n".join(["| | |", "|---|---|", *rows]),
        *_uses_markdown(training),
        "\n".join(["| | predicted | actual |", "|---|---|---|", *comparison]),
        *(
            f"Rejected file {formatting.markdown(file)}: {formatting.markdown(why)}."
            for file, why in _rejected(training)
        ),
        formatting.markdown(_basis(training)),
        "\n".join(f"- {purpose}: `{command}`" for purpose, command in commands(training)),
    ]
    return "\n\n".join(parts) + "\n"


def _uses_markdown(training: TrainingReport) -> list[str]:
    divided, heads = goodput.uses(training), _use_heads(training)
    text = goodput.sentence(training, divided)
    table = [heads, ("---",) * len(heads), *_uses(training, divided)]
    return [] if text is None else [f"{text}.", "\n".join(f"| {' | '.join(row)} |" for row in table)]


def _lines(training: TrainingReport) -> list[summary.SummaryRow]:
    return [*summary.lines(training), *summary.check_rows(training)]


def _basis(training: TrainingReport) -> str:
    return f"Basis of the predicted time: {training.forecast.get('basis', 'nothing')}."


def _attempts(training: TrainingReport) -> list[tuple[str, ...]]:
    return [
        (
            str(attempt.number),
            attempt.worker,
            str(attempt.workers),
            "-" if attempt.step is None else f"{attempt.step:,}",
            formatting.number(attempt.lost_sec) if attempt.lost_sec is not None else "-",
            "-" if attempt.usd is None else f"${attempt.usd:.4f}",
            attempt.reason or "-",
        )
        for attempt in training.attempts
    ]


def _rejected(training: TrainingReport) -> list[tuple[str, str]]:
    return [(rejected.file, rejected.reason) for rejected in training.rejected]


def _files(training: TrainingReport) -> list[tuple[str, str, str]]:
    files = [] if training.record.data is None else training.record.data.files
    return [(file.path, f"{file.lines:,}", file.sha256[:16]) for file in files]


def _steps(training: TrainingReport) -> list[dict[str, object]]:
    columns = dataclasses.asdict(training.record.steps)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _csv(training: TrainingReport, rows: Sequence[dict[str, object]]) -> bytes:
    """Render rows as CSV. Run and configuration come first, so that files of two runs can be concatenated."""
    origin = {"run_id": training.run.run_id, "configuration": training.run.planned[0].trial.name}
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=[*origin, *(rows[0] if rows else [])], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: formatting.spreadsheet(value) for name, value in {**origin, **row}.items()} for row in rows)
    return formatting.escape_text(out.getvalue()).encode()


SETTINGS_FILE, TRIAL_FILE = "settings.json", "trial.json"
# Fields of a trial that a trial file sets: those with a setting of the same name, and those without a setting.
CONFIGURATION = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer"),
    *("lora_rank", "lora_alpha", "lora_dropout", "gradient_checkpointing", "held_layers", "matmul"),
)
FILE_ONLY = ("checkpoint_every", "offload_checkpoints")
REPEATED_SECTIONS = ("model", "data", "train")  # these settings determine the result


def commands(training: TrainingReport) -> list[tuple[str, str]]:
    """Return pairs of purpose and command, the most useful first."""
    run_id = training.folder.name
    report = f"{training.folder.parent.name}/{run_id}/report"
    trial = f" --trial-file={report}/{TRIAL_FILE}" if has_trial_file(training) else ""
    repeat = ("repeat it with the same settings", f"inv -f {report}/{SETTINGS_FILE} train{trial}")
    if not training.has_succeeded:
        return [("resume from the last checkpoint", f"inv train --resume={run_id}"), repeat]
    if not training.record.evaluations:  # adapter.check needs held-out data
        return [("merge it into one model folder", f"inv adapter.merge --run={run_id} --force"), repeat]
    return [
        ("measure the adapter in each form that can be served", f"inv adapter.check --run={run_id}"),
        ("merge it into one model folder", f"inv adapter.merge --run={run_id}"),
        repeat,
    ]


def repeat_settings(training: TrainingReport) -> bytes:
    """Return a file for `inv -f`: the run's REPEATED_SECTIONS, profile, number of workers and their working folder.

    A budget in dollars needs the price, too.
    """
    settings, workers = training.run.settings, training.run.planned[0].trial.world_size
    sections = {name: settings[name] for name in REPEATED_SECTIONS if name in settings}
    sections |= {"bench": {"profile": training.run.profile}, "fleet": {"size": workers}}
    if (workspace := settings.get("fleet", {}).get("workspace")) is not None:
        sections["fleet"]["workspace"] = workspace
    if sections.get("train", {}).get("budget_usd") is not None and "cost" in settings:
        sections["cost"] = settings["cost"]
    if sections.get("train", {}).get("workers") is not None:
        sections["train"] = {**sections["train"], "workers": workers}
    return (json.dumps(sections, indent=1, ensure_ascii=False) + "\n").encode()


def has_trial_file(training: TrainingReport) -> bool:
    """Return whether the training had a trial file: its configuration is not that of the settings."""
    trial, settings = training.run.planned[0].trial, training.run.settings.get("train", {})
    default = Trial(**{name: getattr(trial, name) for name in ("name", "reason", "suite", "profile", "model", "data")})
    derived = () if trial.training is None else trial.training.derive
    values = {name: AUTO if name in derived else getattr(trial, name) for name in CONFIGURATION}
    targets = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}.get(settings.get("lora_targets", ""))
    return (
        any(name in settings and settings[name] != value for name, value in values.items())
        or any(getattr(trial, name) != getattr(default, name) for name in FILE_ONLY)
        or targets not in (None, trial.lora_targets)
    )


def repeat_trial(training: TrainingReport) -> bytes:
    """Return a file for `inv train --trial-file` with the configuration of the training."""
    return training.run.planned[0].trial.to_text().encode()
