"""Statuses, their causes and exit codes: the attributes of each row, and unknown codes."""

import ast
import re
from enum import Enum, IntEnum
from pathlib import Path

import pytest

from bench.records import schema, status, version
from bench.records.result import TrialResult
from bench.records.status import ExitCode, Outcome, ReasonCode, TrialStatus
from remote.agent.shared import secure_dir, wire
from remote.fleet.ledger import Ledger
from tasks import errors
from tests.support.hosts import fake_bench


def test_an_unknown_code_is_an_unknown_cause_with_its_text_and_the_retries_of_its_status(make_trial, tmp_path) -> None:
    result = TrialResult(trial_id="a", trial=make_trial(), status=TrialStatus.LOST, reason="sun spots", remedy="wait")
    document = schema.to_json(result) | {"reason_code": "a code of a newer version"}
    outcome = schema.from_json(TrialResult, document).outcome
    assert outcome.reason_code is ReasonCode.UNKNOWN
    assert outcome.text == "unknown cause: sun spots; wait"
    assert outcome.is_transient
    with pytest.raises(schema.SchemaError, match="reason_code"):
        schema.from_json(TrialResult, document | {"reason_code": 7})
    ledger = Ledger.create(tmp_path / "ledger.jsonl", ["a"])
    ledger.record_end("a", outcome)
    again = Ledger(ledger.path).entries["a"]
    assert (again.outcome, again.reason) == (outcome, outcome.text)


@pytest.mark.parametrize("end", [end for end in TrialStatus if end is not TrialStatus.SUCCEEDED])
def test_every_status_has_a_default_cause_and_a_class_for_its_exit_code(end: TrialStatus) -> None:
    assert end.default_cause is not None
    assert end.default_cause.status is end
    for code in (code for code in ReasonCode if code.status is end):
        assert code.is_transient <= end.is_transient
        assert errors.error_class(code.exit_code).exit_code == code.exit_code
        _, remedy = Outcome.of(code, "a reason", "restore it").problem_and_remedy("inv train --resume")
        assert (remedy == "restore it, then run `inv train --resume`") == code.is_rejected


def test_a_cause_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new cause needs nothing else: records, retries, exit codes and texts follow from its row."""
    text = Path(status.__file__).read_text(encoding="utf-8")
    row = '    MOON = "moon", TrialStatus.LOST, "the moon", {"is_transient": False, "exit_code": ExitCode.REFUSED}\n'
    module = {"__name__": "bench.records.status_with_a_dummy"}
    monkeypatch.setitem(__import__("sys").modules, module["__name__"], type(status)(module["__name__"]))
    exec(compile(re.sub(r"(?m)^(    UNKNOWN = )", row + r"\1", text), "status", "exec"), module)  # noqa: S102 - the text is ours
    outcome = module["Outcome"].of(module["ReasonCode"]("moon"), "it was full")
    assert (outcome.status.value, outcome.is_transient, outcome.text) == ("LOST", False, "it was full")
    assert errors.error_class(outcome.cause.exit_code) is errors.ConfirmationRequired
    assert ReasonCode("moon") is ReasonCode.UNKNOWN  # how a version without the row reads it


def test_the_programs_on_hosts_use_the_same_exit_codes() -> None:
    assert (wire.EXIT_REFUSED, wire.EXIT_TRUNCATED) == (ExitCode.REFUSED, ExitCode.RETRYABLE)
    assert (secure_dir.EXIT_FOREIGN_OWNER, secure_dir.EXIT_UNUSABLE) == (ExitCode.REFUSED, ExitCode.RETRYABLE)
    assert fake_bench.EXIT_NOT_WRITTEN == ExitCode.NOT_WRITTEN


def test_the_module_can_be_read_by_python_3_9() -> None:
    tree = ast.parse(Path(status.__file__).read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"__future__", "collections.abc", "dataclasses", "enum", "typing", version.__name__}
    assert issubclass(ExitCode, IntEnum)
    assert issubclass(ReasonCode, Enum)
