"""`inv tenancy.prices`: what is read from Oracle's public list, shown, refused and written."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

import yaml
from invoke import Context

from reports.summary import prices as table
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.oci import prices
from tasks.oci.prices import take_prices
from tests.support.machines.fake_tenancy import FakeTenancy, price
from tests.support.machines.http_stubs import Answering, Serving

Make = Callable[..., Context]
Said = pytest.CaptureFixture[str]
OTHER_SHAPE = """  VM.GPU.OTHER.1: # mine
    gpu: NVIDIA Other
    gpus: 1
    on_demand: { amount: 9, unit: USD per GPU hour, source: me, dated: 2026-01-01 }
"""


@pytest.fixture(autouse=True)
def price_list(tenancy: FakeTenancy, monkeypatch: pytest.MonkeyPatch) -> FakeTenancy:
    monkeypatch.setattr(prices, "LIST", f"{tenancy.url}/pls/apex/cetools/api/v1/products/")
    monkeypatch.setattr(prices, "PAUSE_SEC", 0.0)
    return tenancy


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def test_differences_are_shown_and_the_new_table_is_the_one_that_reports_use(
    project: Path, context: Make, capsys: Said
) -> None:
    take_prices(context(), "USD", yes=True)
    said = capsys.readouterr().out
    assert "B95909  2.5 USD  GPU Per Hour" in said
    assert "VM.GPU.A10.1 on_demand: 2 -> 2.5 USD per GPU hour (was of 2026-" in said
    assert "boot_volume:" not in said  # 0.0255 and ten times 0.0017: as in the table
    assert "B88327  0.009 USD  Gigabyte Outbound Data Transfer Per Month after 10,240 for nothing" in said
    assert "traffic_america_europe: 0.0085 -> 0.009 USD per GB (was of 2026-" in said
    assert "file_storage:" not in said  # 0.3: as in the table
    whole = table.read(project / "prices.yaml", today=today())
    traffic = whole.others["traffic_america_europe"]
    assert (traffic.amount, traffic.free_gb, traffic.dated) == (0.009, 10240, today())
    assert whole.others["file_storage"].source == "Oracle's public price list, part B89057"
    written = whole.shapes["VM.GPU.A10.1"]
    assert (written.on_demand.amount, written.on_demand.dated) == (2.5, today())
    assert written.on_demand.source == "Oracle's public price list, part B95909"
    assert written.boot_volume is not None
    assert written.boot_volume.amount == 0.0425
    user = yaml.safe_load((project.parent / "home" / ".invoke.yaml").read_text())
    assert user == {"cost": {"prices": str(project / "prices.yaml")}}
    take_prices(context(), "usd", yes=True)
    assert "the same as in prices.yaml; the date is new" in capsys.readouterr().out


def test_a_table_of_ones_own_keeps_its_comments_and_other_shapes(project: Path, context: Make) -> None:
    own = project / "mine.yaml"
    own.write_text(table.TABLE.read_text().partition("others:")[0] + OTHER_SHAPE)
    take_prices(context(text="cost: {prices: mine.yaml}"), "USD", yes=True)
    written = own.read_text()
    assert "VM.GPU.OTHER.1: # mine" in written
    assert "the published A10 results" in written
    found = table.read(own, today=today())
    assert found.shapes["VM.GPU.A10.1"].on_demand.amount == 2.5
    assert found.others["traffic_middle_east_africa"].amount == 0.05, "what a table lacks is added"


def test_nothing_is_written_without_a_yes(project: Path, context: Make) -> None:
    with pytest.raises(ConfirmationRequired, match="nothing was written; type the same with --yes"):
        take_prices(context(), "USD", yes=False)
    assert not (project / "prices.yaml").exists()


def test_prices_in_another_currency_are_shown_and_not_written(project: Path, context: Make, capsys: Said) -> None:
    with pytest.raises(UsageError, match="prices in EUR are shown and not written"):
        take_prices(context(), "EUR", yes=True)
    assert "B95909  2.325 EUR" in capsys.readouterr().out
    assert not (project / "prices.yaml").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"currencyCodeLocalizations": [{"currencyCode": "JPY", "prices": []}]}, "is in JPY, not in USD"),
        ({"currencyCodeLocalizations": [{"currencyCode": 7, "prices": []}]}, "is in 7, not in USD"),
        ({"partNumber": "B1"}, "does not have that part"),
        ({"metricName": "OCPU Per Hour"}, "is by 'OCPU Per Hour', not by gpu and hour"),
        ({"displayName": None, "currencyCodeLocalizations": 7}, "has another form than it had"),
        ({"currencyCodeLocalizations": [{"currencyCode": "USD", "prices": []}]}, "has no single price: []"),
        (
            price("", "", 2.5, free=100) | {"partNumber": "B95909", "metricName": "GPU Hour"},
            "no single price: [0.0, 2.5]",
        ),
    ],
)
def test_an_answer_that_is_no_such_price_is_refused(
    price_list: FakeTenancy, project: Path, context: Make, change: dict[str, object], words: str
) -> None:
    price_list.world.lists["/prices"][0] |= change
    with pytest.raises(UsageError) as raised:
        take_prices(context(), "USD", yes=True)
    assert words in str(raised.value)
    assert str(raised.value).endswith("prices stay as they are")
    assert not (project / "prices.yaml").exists()


def test_a_list_that_is_a_web_page_is_refused(price_list: FakeTenancy, context: Make) -> None:
    price_list.fail("/pls/apex", 200, html=True)
    with pytest.raises(UsageError, match="is not JSON: '<html>"):
        take_prices(context(), "USD", yes=True)


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 200, "cut": True}])
def test_a_list_that_stumbles_is_asked_again_and_then_given_up(
    price_list: FakeTenancy, context: Make, fault: dict[str, int]
) -> None:
    price_list.fail("/pls/apex", fault["status"], times=2, cut=bool(fault.get("cut")))
    take_prices(context(), "USD", yes=True)
    price_list.fail("/pls/apex", fault["status"], cut=bool(fault.get("cut")))
    with pytest.raises(RetryableError, match=r"does not answer: .*; check network and proxy"):
        take_prices(context(), "USD", yes=True)


class Redirecting(Serving):
    """Sends everybody to `to`."""

    def __init__(self, to: str) -> None:
        super().__init__(_Handler)
        self.to = to


class _Handler(Answering):
    server: Redirecting

    def do_GET(self) -> None:
        self.reply(302, b"", {"Location": self.server.to})


@pytest.mark.parametrize(
    "to", ["http://[", "//[::1", "http://host:port/", "http://127.0.0.1:9999999999999999999999/", "http://a b/"]
)
def test_a_list_that_redirects_to_what_is_no_address_is_refused(
    to: str, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Redirecting(to) as server:
        monkeypatch.setattr(prices, "LIST", f"http://{server.host}/")
        with pytest.raises(UsageError, match=r"^the price list at http:.* redirects to what is no address: .*; is a "):
            take_prices(context(), "USD", yes=True)


@pytest.mark.parametrize("currency", ["", "DOLLARS", "U$D"])
def test_what_is_no_currency_is_refused(context: Make, currency: str) -> None:
    with pytest.raises(UsageError, match="expected a code like USD or EUR"):
        take_prices(context(), currency, yes=True)


class Heard:
    """An answer of the list, from `url`, that goes on for ever."""

    length = None

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def read1(self, _: int) -> bytes:
        return b" "


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("http://list.example/", UsageError, r"redirects to what is no address: http://list\.example/ is over another"),
        ("https://list.example/", RetryableError, r"does not answer: no whole answer within 0 s"),
    ],
)
def test_prices_come_over_tls_and_in_time(
    url: str, error: type[TaskFailed], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "LIST", "https://list.example/")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Heard(url))
    monkeypatch.setattr(prices, "TIMEOUT_SEC", 0.01)
    monkeypatch.setattr(prices, "ATTEMPTS", 1)
    with pytest.raises(error, match=words):
        prices.look_up(prices.GPU_HOUR, "USD")
