"""The report of a training as a document."""

from collections.abc import Iterator

from bench.records.score import ScoredRow, TrainingScore
from reports import formatting
from reports.document import (
    Answers,
    Document,
    Picture,
    Section,
    Table,
    Text,
    Tile,
    paragraph,
    text_table,
)
from reports.figures import loss
from reports.figures.drawing.layout import draw_picture
from reports.summary.summary import PROFILE_NOTES
from reports.training import sentences
from reports.training.training_facts import TrainingReport, adapter_evaluation

LOSS_FIGURE = "loss"
_SHOWN_ANSWERS = 3


def make(training: TrainingReport) -> Document:
    note = PROFILE_NOTES.get(training.run.profile)
    return Document(
        kicker="training report",
        run_id=training.run.run_id,
        headline=sentences.headline(training),
        notes=tuple(sentences.notes(training)),
        tiles=tuple(tiles(training)),
        doubts=() if note is None else (note,),
        commands=(sentences.next_command(training),),
        facts=(("Run", training.run.run_id), ("Profile", training.run.profile)),
        sections=tuple(_sections(training)),
    )


def tiles(training: TrainingReport) -> Iterator[Tile]:
    """Yield the main numbers."""
    record, last, seconds = training.record, adapter_evaluation(training.record), training.steps_sec
    if record.score is not None and record.score.measures:
        measure = record.score.measures[0]
        before = f"{measure.before * 100:.0f} % before; {measure.after_low * 100:.0f} to {measure.after_high * 100:.0f}"
        name = sentences.score_label(record.score, measure)
        yield Tile(name=name, value=f"{measure.after * 100:.0f} %", detail=before)
    if last is not None:
        span = formatting.span(last.low, last.high, 4).strip("()")
        yield Tile(name="held-out loss", value=f"{last.loss:.4f}", detail=span)
    usd, predicted_sec = training.forecast.get("usd"), training.forecast.get("seconds")
    if training.usd is not None:
        predicted = "" if usd is None else f"predicted {formatting.dollars(usd)}"
        yield Tile(name="cost", value=formatting.dollars(training.usd), detail=predicted)
    predicted = "" if predicted_sec is None else f"predicted {formatting.duration(predicted_sec)}"
    yield Tile(name="time of the steps", value=formatting.duration(seconds), detail=predicted)
    if seconds > 0:
        rate = formatting.number(sum(record.steps.tokens) / seconds)
        yield Tile(name="useful tokens per second", value=rate, detail=f"of {training.workers_text}")


def _sections(training: TrainingReport) -> Iterator[Section]:
    record = training.record
    if record.score is not None:
        yield from _score(record.score)
    if (picture := _picture(training)) is not None:
        yield Section(title="Loss", parts=(picture,))
    heads = ("quantity", "predicted", "actual")
    goodput, basis = sentences.goodput(training), training.forecast.get("basis")
    yield Section(
        title="Predicted and actual",
        parts=(
            *([paragraph(goodput)] if goodput else []),
            text_table(heads, sentences.predicted_and_actual(training), heads[1:]),
            *([paragraph(f"Basis of the predicted time: {basis}.", is_quiet=True)] if basis else []),
        ),
        is_brief=True,
    )
    numbers = text_table(("quantity", "value"), [*sentences.lines(training), *sentences.check_lines(training)])
    yield Section(title="All numbers", parts=(numbers,), is_brief=True)
    yield from _data(training)
    if len(training.attempts) > 1:
        yield Section(title="Attempts", parts=(_attempts(training),), is_brief=True)
    if training.rejected:
        rejected = [(each.file, each.reason) for each in training.rejected]
        yield Section(title="Rejected files", parts=(text_table(("file", "reason"), rejected),))


def _score(score: TrainingScore) -> Iterator[Section]:
    parts: list[Table | Text] = []
    if score.measures:
        heads = ("score", "before", "after", "difference in points", "rows")
        means = "Means over rows with 95 % intervals; differences are paired by row."
        parts += [text_table(heads, sentences.score_table(score), heads[1:]), paragraph(means, is_quiet=True)]
    if score.unscored:
        left_out = f"{score.unscored_rows} of {len(score.places)} rows have no score. They are left out of all means."
        rows = [(f"{row.row:,}", row.place, sentences.fault_text(row)) for row in score.unscored]
        parts += [paragraph(left_out), text_table(("row", "place", "cause"), rows)]
    if parts:
        yield Section(title="Score", parts=tuple(parts), is_brief=True)
    shown = tuple(map(_scored, score.shown))
    if shown:
        yield Section(title="Held-out answers before and after", parts=shown[:_SHOWN_ANSWERS])
    if more := shown[_SHOWN_ANSWERS:]:
        yield Section(title=f"{len(more)} more held-out answers", parts=more, is_folded=True)


def _scored(row: ScoredRow) -> Answers:
    scores = (("before", row.before, row.before_score), ("after", row.after, row.after_score))
    items = [(head if value is None else f"{head}: {value:.2f}", text) for head, text, value in scores]
    return Answers(prompt=row.prompt, items=(*items, (f"in the data, {row.place}", row.expected)))


def _picture(training: TrainingReport) -> Picture | None:
    drawing = loss.gather_training(training)
    return None if drawing is None else draw_picture(LOSS_FIGURE, "", drawing)


def _data(training: TrainingReport) -> Iterator[Section]:
    data = training.record.data
    if data is None:
        return
    amounts = f"{data.examples:,} examples, {data.validation_examples:,} held out, {data.left_out:,} lines left out."
    parts: list[Table | Text] = [paragraph(amounts)]
    if findings := sentences.findings(training):
        parts.append(text_table(("finding", "lines", "first lines"), findings, ("lines",)))
    files = [(file.path, f"{file.lines:,}", file.sha256[:16]) for file in data.files]
    yield Section(title="Training data", parts=(*parts, text_table(("file", "lines", "sha256"), files, ("lines",))))


def _attempts(training: TrainingReport) -> Table:
    heads = ("attempt", "leader", "resumed from step", "seconds lost", "dollars", "ended because")
    rows = [
        (
            str(attempt.number),
            attempt.worker,
            "" if attempt.step is None else f"{attempt.step:,}",
            "" if attempt.lost_sec is None else formatting.number(attempt.lost_sec),
            "" if attempt.usd is None else f"${attempt.usd:.4f}",
            attempt.reason or "",
        )
        for attempt in training.attempts
    ]
    return text_table(heads, rows)
