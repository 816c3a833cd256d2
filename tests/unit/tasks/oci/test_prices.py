"""`inv tenancy.prices`: parsing of Oracle's public list, the differences shown, and the table written."""

import datetime
import http.client
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

import yaml
from invoke import Context

from reports.summary import prices as table
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.oci import list_prices
from tasks.oci.list_prices import parse_price, update_prices
from tests.support.machines.fake_tenancy import FakeTenancy, price

Make = Callable[..., Context]
Capture = pytest.CaptureFixture[str]
OTHER_SHAPE = """  VM.GPU.OTHER.1: # mine
    gpu: NVIDIA Other
    gpus: 1
    on_demand: { amount: 9, unit: USD per GPU hour, source: me, dated: 2026-01-01 }
"""


@pytest.fixture(autouse=True)
def price_list(tenancy: FakeTenancy, monkeypatch: pytest.MonkeyPatch) -> FakeTenancy:
    monkeypatch.setattr(list_prices, "PRICE_LIST_URL", f"{tenancy.url}/pls/apex/cetools/api/v1/products/")
    monkeypatch.setattr(list_prices, "RETRY_PAUSE_SEC", 0.0)
    return tenancy


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def test_differences_are_shown_and_the_new_table_is_the_one_that_reports_use(
    project: Path, context: Make, capsys: Capture
) -> None:
    update_prices(context(), "USD", yes=True)
    output = capsys.readouterr().out
    assert "B95909  2.5 USD  GPU Per Hour" in output
    assert "VM.GPU.A10.1 on_demand: 2 -> 2.5 USD per GPU hour (was dated 2026-" in output
    assert "boot_volume:" not in output  # 0.0255 and ten times 0.0017: as in the table
    assert "B88327  0.009 USD  Gigabyte Outbound Data Transfer Per Month, first 10,240 free" in output
    assert "traffic_america_europe: 0.0085 -> 0.009 USD per GB (was dated 2026-" in output
    assert "file_storage:" not in output  # 0.3: as in the table
    new_table = table.read_table(project / "prices.yaml", today=today())
    traffic = new_table.others["traffic_america_europe"]
    assert (traffic.amount, traffic.free_gb, traffic.day) == (0.009, 10240, today())
    assert new_table.others["file_storage"].day == today()
    assert {shape.on_demand.amount for shape in new_table.shapes.values()} == {2.5, 7.0}
    shape = new_table.shapes["VM.GPU.A10.1"]
    assert (shape.on_demand.amount, shape.on_demand.day) == (2.5, today())
    assert shape.boot_volume is not None
    assert shape.boot_volume.amount == 0.0425
    user = yaml.safe_load((project.parent / "home" / ".invoke.yaml").read_text())
    assert user == {"cost": {"prices": str(project / "prices.yaml")}}
    update_prices(context(), "usd", yes=True)
    assert " -> " not in capsys.readouterr().out


def test_the_user_s_own_table_keeps_its_comments_and_other_shapes(project: Path, context: Make) -> None:
    own = project / "mine.yaml"
    own.write_text(table.TABLE.read_text().partition("others:")[0] + OTHER_SHAPE)
    update_prices(context(text="cost: {prices: mine.yaml}"), "USD", yes=True)
    written = own.read_text()
    assert "VM.GPU.OTHER.1: # mine" in written
    assert "the published A10 results" in written
    written_table = table.read_table(own, today=today())
    assert written_table.shapes["VM.GPU.A10.1"].on_demand.amount == 2.5
    assert written_table.shapes["VM.GPU.OTHER.1"].on_demand.amount == 9


def test_nothing_is_written_without_a_yes(project: Path, context: Make) -> None:
    with pytest.raises(ConfirmationRequired, match=r"; .*--yes"):
        update_prices(context(), "USD", yes=False)
    assert not (project / "prices.yaml").exists()


def test_prices_in_another_currency_are_shown_and_not_written(project: Path, context: Make, capsys: Capture) -> None:
    with pytest.raises(UsageError, match="EUR"):
        update_prices(context(), "EUR", yes=True)
    assert "B95909  2.325 EUR" in capsys.readouterr().out
    assert not (project / "prices.yaml").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"currencyCodeLocalizations": [{"currencyCode": "JPY", "prices": []}]}, "is in JPY, not in USD"),
        ({"currencyCodeLocalizations": [{"currencyCode": 7, "prices": []}]}, "is in 7, not in USD"),
        ({"partNumber": "B1"}, "B95909"),
        ({"metricName": "OCPU Per Hour"}, "'OCPU Per Hour', not gpu and hour"),
        ({"displayName": None, "currencyCodeLocalizations": 7}, "format"),
        ({"currencyCodeLocalizations": [{"currencyCode": "USD", "prices": []}]}, "price: []"),
        (price("", "", 2.5, free=100) | {"partNumber": "B95909", "metricName": "GPU Hour"}, "price: [0.0, 2.5]"),
    ],
)
def test_a_response_without_a_valid_price_is_refused(change: dict[str, object], expected: str) -> None:
    item = price("B95909", "GPU Per Hour", 2.5)
    assert parse_price(json.dumps({"items": [item]}).encode(), "B95909", "USD", ("gpu", "hour")).amount == 2.5
    with pytest.raises(UsageError, match=re.escape(expected)):
        parse_price(json.dumps({"items": [item | change]}).encode(), "B95909", "USD", ("gpu", "hour"))


def test_a_list_that_is_a_web_page_is_refused(price_list: FakeTenancy, project: Path, context: Make) -> None:
    price_list.fail("/pls/apex", 200, html=True)
    with pytest.raises(UsageError, match="unknown format: '<html>"):
        update_prices(context(), "USD", yes=True)
    assert not (project / "prices.yaml").exists()


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 200, "truncated": True}])
def test_a_temporary_failure_is_retried_up_to_a_limit(
    price_list: FakeTenancy, context: Make, fault: dict[str, int]
) -> None:
    price_list.fail("/pls/apex", fault["status"], times=2, truncated=bool(fault.get("truncated")))
    update_prices(context(), "USD", yes=True)
    price_list.fail("/pls/apex", fault["status"], truncated=bool(fault.get("truncated")))
    with pytest.raises(RetryableError, match=r"/products/.*; check network and proxy"):
        update_prices(context(), "USD", yes=True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ValueError("an odd redirect"), "an odd redirect"),
        (OverflowError("its port"), "its port"),
        (http.client.InvalidURL("a space"), "a space"),
        (nullcontext(SimpleNamespace(url="http://list.example/")), "http://list.example/ uses another protocol"),
    ],
)
def test_a_list_that_does_not_answer_over_tls_is_a_retryable_error(
    answer: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def urlopen(*_: object, **__: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(list_prices, "PRICE_LIST_URL", "https://list.example/")
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(RetryableError, match=f"https://list.example/ does not answer: {expected}"):
        list_prices.fetch_price("B95909", "USD", ())


@pytest.mark.parametrize("currency", ["", "DOLLARS", "U$D"])
def test_an_invalid_currency_is_refused(context: Make, currency: str) -> None:
    with pytest.raises(UsageError, match="--currency: "):
        update_prices(context(), currency, yes=True)
