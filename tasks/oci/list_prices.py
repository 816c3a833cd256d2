"""`inv tenancy.prices`: copy Oracle's public list prices to your own price table, after showing the differences.

The list is queried by the part numbers in the table's sources, without a login; prices of other sources stay. Reports
use US dollars; prices in another currency are only shown.
"""

import datetime
import functools
import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from invoke.context import Context

from bench.records import schema
from remote.agent.shared.errors import with_retries
from remote.agent.shared.responses import read_response
from reports.summary import prices
from reports.summary.prices import PriceError, PriceTable
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.terminal import confirm
from tasks.errors import ConfirmationRequired, RetryableError, UsageError, translate_errors
from tasks.settings.layers import Settings, load
from tasks.settings.sources import display_path
from tasks.settings.user_config import merge_settings, write_private, write_user_settings

PRICE_LIST_URL = "https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/"
TIMEOUT_SEC, RETRY_PAUSE_SEC = 30.0, 2.0
_MAX_BYTES = 8 << 20
PART = re.compile(r"\bB[0-9]{5,6}\b")  # in the source of a price
# Words in the metric of a part, by the unit of the price.
TRAFFIC_UNIT = "USD per GB"
UNIT_WORDS = {
    "USD per GPU hour": ("gpu", "hour"),
    "USD per GB month": ("gigabyte", "month"),
    TRAFFIC_UNIT: ("gigabyte", "transfer"),
}
PERFORMANCE_WORDS = ("performance", "month")  # in the metric of a second part: a block volume has both
PERFORMANCE_UNITS_PER_GB = 10  # performance level "Balanced" of a boot volume
DEFAULT_FILE = "prices.yaml"  # next to invoke.yaml, if cost.prices is not set
TABLE_CURRENCY = "USD"


@dataclass(frozen=True, kw_only=True)
class ListPrice:
    """A part's price per unit, in the requested currency; the first `free_units` of a month are free."""

    part: str
    name: str
    metric: str
    amount: float
    free_units: float = 0.0


def update_prices(context: Context, currency: str, *, dry_run: bool = False, yes: bool) -> CommandResult | None:
    settings = load(context)
    wanted = currency.upper()
    if len(wanted) != 3 or not wanted.isalpha():
        raise UsageError(f"tenancy.prices: --currency: expected a code like USD or EUR, found {currency!r}")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    path, table = _load_table(settings, today)
    entries = listed_entries(table)
    metrics = {part: metric_words for entry in entries.values() for part, metric_words in _parts(entry)}
    list_prices = {part: fetch_price(part, wanted, metric_words) for part, metric_words in metrics.items()}
    for price in list_prices.values():
        free = f", first {price.free_units:,.0f} free" if price.free_units else ""
        print(f"{price.part}  {price.amount:.6g} {wanted}  {price.metric}{free}  ({price.name})")
    if wanted != TABLE_CURRENCY:
        raise UsageError(f"prices in {wanted} are shown, not written: the table and all reports use US dollars")
    amounts = {keys: _new_amount(entry, list_prices) for keys, entry in entries.items()}
    differences = [
        f"{' '.join(keys[1:])}: {entry.amount:g} -> {amounts[keys]:g} {entry.unit} (was dated {entry.dated})"
        for keys, entry in entries.items()
        if entry.amount != amounts[keys]
    ]
    unchanged = f"the same prices as in {display_path(path or prices.TABLE)}; only the date is new"
    print("\n".join(differences) if differences else unchanged)
    if settings.cost.price_usd_per_gpu_hour is not None:
        print("cost.price_usd_per_gpu_hour is set and overrides this table in reports")
    target = path or settings.resolve_path(DEFAULT_FILE)
    if dry_run:
        parts = [asdict(price) for price in list_prices.values()]
        return plan_result([], file=str(target), currency=wanted, prices=parts, differences=differences)
    if not yes and not confirm(f"Write these prices, dated today, to {display_path(target)}?"):
        raise ConfirmationRequired("nothing was written", remedy="pass --yes to confirm")
    text = target.read_text(encoding="utf-8") if path else _default_table_text()
    changes: dict[str, Any] = {}
    for keys, entry in entries.items():
        values: dict[str, Any] = {"amount": amounts[keys], "dated": today}
        if entry.unit == TRAFFIC_UNIT:
            values["free_gb"] = list_prices[_parts(entry)[0][0]].free_units
        functools.reduce(lambda section, key: section.setdefault(key, {}), keys, changes).update(values)
    _write_table(target, merge_settings(text, changes, target), today)
    print(f"wrote {display_path(target)}")
    if path is None:
        for line in write_user_settings({"cost": {"prices": str(target)}}):
            print(line)
    return None


def listed_entries(table: PriceTable) -> dict[tuple[str, ...], Any]:
    """Return the prices of a table whose source names parts of Oracle's list, by their keys."""
    entries: dict[tuple[str, ...], Any] = {}
    for name, shape in table.shapes.items():
        entries |= {("shapes", name, key): getattr(shape, key) for key in ("on_demand", "boot_volume")}
    entries |= {("others", name): other for name, other in table.others.items()}
    return {keys: entry for keys, entry in entries.items() if entry is not None and PART.search(entry.source)}


def _parts(entry: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Return the parts of a price, each with the words of its metric."""
    first, *others = PART.findall(entry.source)
    return [(first, UNIT_WORDS[entry.unit]), *((part, PERFORMANCE_WORDS) for part in others)]


def _new_amount(entry: Any, list_prices: Mapping[str, ListPrice]) -> float:
    first, *others = (list_prices[part].amount for part, _ in _parts(entry))
    return round(first + PERFORMANCE_UNITS_PER_GB * sum(others), 6)


def fetch_price(part: str, currency: str, metric_words: Sequence[str]) -> ListPrice:
    """Query the price of a part. Raises RetryableError if the list is unreachable, UsageError if it lacks the price."""
    query = urllib.parse.urlencode({"partNumber": part, "currencyCode": currency})
    return parse_price(_download(f"{PRICE_LIST_URL}?{query}"), part, currency, metric_words)


def parse_price(content: bytes, part: str, currency: str, metric_words: Sequence[str]) -> ListPrice:
    """Parse the pay-as-you-go price of a part from the response; its metric has these words. Raises UsageError."""
    try:
        items = schema.parse_object(content)["items"]
        item = next((item for item in items if item["partNumber"] == part), None)
        if item is None:
            raise _unusable(part, "lacks that part")
        name, metric = (" ".join(str(item[key]).split())[:120] for key in ("displayName", "metricName"))
        local = {str(item["currencyCode"]): item["prices"] for item in item["currencyCodeLocalizations"]}
        paid = [item for item in local.get(currency, ()) if item["model"] == "PAY_AS_YOU_GO"]
        steps = sorted({(float(item.get("rangeMin") or 0.0), float(item["value"])) for item in paid})
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise _unusable(part, f"has an unknown format: {content[:40].decode('utf-8', 'replace')!r}") from error
    if currency not in local:
        raise _unusable(part, f"is in {', '.join(local) or 'no currency'}, not in {currency}")
    if not all(word in metric.lower() for word in metric_words):
        raise _unusable(part, f"is per {metric!r}, not {' and '.join(metric_words)}")
    amounts = list(dict.fromkeys(amount for _, amount in steps))
    is_free_at_first = metric_words == UNIT_WORDS[TRAFFIC_UNIT] and steps[:1] == [(0.0, 0.0)]
    if len(amounts) != 1 + is_free_at_first or not 0 < amounts[-1] < 10_000:
        raise _unusable(part, f"has no single price: {amounts}")
    free = next(start for start, amount in steps if amount == amounts[-1])
    return ListPrice(part=part, name=name, metric=metric, amount=amounts[-1], free_units=free)


def _unusable(part: str, problem: str) -> UsageError:
    return UsageError(
        f"the price list's response for {part} {problem}",
        remedy="is a proxy intercepting the connection? prices are unchanged",
    )


def _download(url: str) -> bytes:
    return with_retries(
        functools.partial(_download_once, url),
        RETRY_PAUSE_SEC,
        is_transient=lambda error: isinstance(error, RetryableError),
    )


def _download_once(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SEC) as response:  # noqa: S310 - PRICE_LIST_URL
            if urllib.parse.urlsplit(response.url).scheme != urllib.parse.urlsplit(url).scheme:
                raise ValueError(f"{response.url} uses another protocol")
            return read_response(response, max_bytes=_MAX_BYTES, timeout_sec=TIMEOUT_SEC)
    except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:  # also from an odd redirect
        is_refusal = isinstance(error, urllib.error.HTTPError) and error.code != 429 and error.code < 500
        kind = UsageError if is_refusal else RetryableError
        reason = str(error) or type(error).__name__
        raise kind(
            f"the price list at {PRICE_LIST_URL} does not answer: {reason}",
            remedy="check network and proxy, then retry; prices are unchanged",
        ) from error


def _load_table(settings: Settings, today: datetime.date) -> tuple[Path | None, PriceTable]:
    """Return (the user's own file or None, the table in effect). Raises UsageError."""
    file = settings.resolve_path(settings.cost.prices or DEFAULT_FILE)
    with translate_errors(UsageError, PriceError, remedy="nothing was written"):
        if file.exists() or settings.cost.prices is not None:
            return file, prices.read_table(file, today=today)
        return None, prices.read_table(prices.TABLE, today=today)


def _default_table_text() -> str:
    """Return the project's table without its comments, which do not apply to new prices."""
    document = yaml.safe_load(prices.TABLE.read_text(encoding="utf-8"))
    return "# Written by `inv tenancy.prices`, which preserves all other entries.\n" + yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True
    )


def _write_table(path: Path, text: str, today: datetime.date) -> None:
    """Write a draft, check it as reports do, then replace the table. Raises UsageError."""
    draft = path.with_name(f".{path.name}.new")
    try:
        write_private(draft, text.encode(), mode=0o644)
        prices.read_table(draft, today=today)
        draft.replace(path)
    except PriceError as error:
        raise UsageError.from_error(error, remedy="nothing was written") from error
    except OSError as error:
        raise UsageError(f"{display_path(path)}: cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
