"""The watch of a run: which notifications it sends, by a clock of the test."""

import json
from typing import Any

import pytest

from bench.notify.events import Notification, RunWatch
from bench.records.run import Progress
from bench.records.status import Outcome, ReasonCode, TrialStatus
from tests.support.cases import Case, load_cases

USD_PER_SEC, STALLED_SEC = 0.01, 100.0


def outcome(fields: dict[str, str]) -> Outcome:
    if "code" in fields:
        return Outcome.of(ReasonCode(fields["code"]), fields["reason"])
    return Outcome(TrialStatus(fields["status"]))


def call(watch: RunWatch, name: str, argument: Any) -> None:
    if name == "progress":
        attempt = argument.pop("attempt")
        watch.on_progress(attempt, Progress(phase="train", steps=100, elapsed_sec=1.0, **argument))
    elif name in ("loss", "end"):
        getattr(watch, f"on_{name}")(outcome(argument))
    elif name == "attempt":
        watch.on_attempt(argument)
    else:
        getattr(watch, name)()


@pytest.mark.parametrize("case", load_cases(__file__, "watch.yaml"))
def test_a_watch_sends_what_happened(case: Case) -> None:
    now, sent = [0.0], list[Notification]()
    watch = RunWatch(
        run_id="r1",
        source="operator",
        send=sent.append,
        stalled_sec=STALLED_SEC,
        budget_usd=case.get("budget_usd"),
        usd_per_sec=USD_PER_SEC,
        spent_usd=lambda: now[0] * USD_PER_SEC,
        clock=lambda: now[0],
    )
    for at, name, argument in case["calls"]:
        now[0] = float(at)
        call(watch, name, argument)
    documents = [json.loads(notification.to_bytes()) for notification in sent]
    expected = [{"event": event, **fields} for event, fields in case["sent"]]
    assert [
        {key: document[key] for key in fields} for document, fields in zip(documents, expected, strict=True)
    ] == expected
    assert all(document["kind"] == "notification" and document["run_id"] == "r1" for document in documents)


def test_a_notification_is_one_line_of_json_whatever_a_reason_holds() -> None:
    sent = list[Notification]()
    watch = RunWatch(run_id="r1", source="job", send=sent.append, stalled_sec=STALLED_SEC)
    watch.on_end(Outcome.of(ReasonCode.ERROR, 'two\nlines, "quotes", \ud800 and \x1b[31m'))
    body = sent[0].to_bytes()
    assert body.count(b"\n") == 1
    assert json.loads(body)["status"] == "FAILED"
