"""`inv tenancy.prices`: Oracle's public list prices into your own table of prices; differences are shown first.

The list is read by part number and needs no login. Reports count in US dollars; in another currency it is only shown.
"""

import datetime
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from invoke.context import Context

from reports.summary import prices
from reports.summary.prices import PriceError, PriceTable
from tasks.cli.terminal import asks
from tasks.errors import ConfirmationRequired, RetryableError, UsageError, translate_errors
from tasks.oci.private_files import write_private
from tasks.oci.user_config import with_settings, write_user_settings
from tasks.settings.load import Settings, load
from tasks.settings.sources import shown

LIST = "https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/"
TIMEOUT_SEC, ATTEMPTS, PAUSE_SEC = 30.0, 4, 2.0
_MOST_BYTES, _PIECE = 8 << 20, 1 << 16
GPU_HOUR, SPACE, PERFORMANCE = "B95909", "B91961", "B91962"
# What else is paid for: part to its key in the table. Traffic has a price for each part of the world that it leaves.
OTHERS = {
    "B89057": "file_storage",
    "B88327": "traffic_america_europe",
    "B93455": "traffic_asia_south_america",
    "B93456": "traffic_middle_east_africa",
}
_GB_MONTH, _TRAFFIC = ("gigabyte", "month"), ("gigabyte", "transfer")
UNITS = {
    GPU_HOUR: ("gpu", "hour"),
    SPACE: _GB_MONTH,
    PERFORMANCE: ("performance", "month"),
    **{part: _TRAFFIC if key.startswith("traffic") else _GB_MONTH for part, key in OTHERS.items()},
}
BALANCED = 10  # performance units of a boot volume for each GB
GPU = "NVIDIA A10"
OWN = "prices.yaml"  # where none is set, beside invoke.yaml
DOLLARS = "USD"


@dataclass(frozen=True, kw_only=True)
class ListPrice:
    """A part's price for one unit, in the currency that was asked for; a month's first `free` units are for nothing."""

    part: str
    name: str
    metric: str
    amount: float
    free: float = 0.0


def take_prices(context: Context, currency: str, *, yes: bool) -> None:
    settings = load(context)
    wanted = currency.upper()
    if len(wanted) != 3 or not wanted.isalpha():
        raise UsageError(f"tenancy.prices: --currency: expected a code like USD or EUR, found {currency!r}")
    listed = {part: look_up(part, wanted) for part in UNITS}
    for one in listed.values():
        free = f" after {one.free:,.0f} for nothing" if one.free else ""
        print(f"{one.part}  {one.amount:.6g} {wanted}  {one.metric}{free}  ({one.name})")
    if wanted != DOLLARS:
        raise UsageError(
            f"prices in {wanted} are shown and not written: the table and every report count in US dollars"
        )
    today = datetime.datetime.now(datetime.timezone.utc).date()
    path, table = _table(settings, today)
    found = changes(table, listed, today)
    differences = [line for line in compared(table, found) if line]
    print("\n".join(differences) if differences else f"the same as in {shown(path or prices.TABLE)}; the date is new")
    if settings.cost.price_usd_per_gpu_hour is not None:
        print("cost.price_usd_per_gpu_hour is set, and stands before this table in reports")
    into = path or settings.root / OWN
    if not yes and not asks(f"Write these prices, of today, to {shown(into)}?"):
        raise ConfirmationRequired("nothing was written; type the same with --yes if it is meant")
    text = into.read_text(encoding="utf-8") if path else _fresh()
    _write(into, with_settings(text, found, shown(into)), today)
    print(f"wrote {shown(into)}")
    if path is None:
        for line in write_user_settings({"cost": {"prices": str(into)}}):
            print(line)


def look_up(part: str, currency: str) -> ListPrice:
    """The list's price of a part. Raises Resumable where nobody answers, UsageError for an answer without it."""
    query = urllib.parse.urlencode({"partNumber": part, "currencyCode": currency})
    return price_in(_get(f"{LIST}?{query}"), part, currency)


def price_in(content: bytes, part: str, currency: str) -> ListPrice:
    """The pay-as-you-go price of a part in the list's answer. Raises UsageError."""
    where = f"the price list's answer for {part}"
    if content.lstrip()[:1] != b"{":
        raise UsageError(f"{where} is not JSON: {content[:40].decode('utf-8', 'replace')!r}; is a proxy between?")
    try:
        items = json.loads(content)["items"]
        item = next(item for item in items if item["partNumber"] == part)
        name, metric = (" ".join(str(item[key]).split())[:120] for key in ("displayName", "metricName"))
        local = {str(one["currencyCode"]): one["prices"] for one in item["currencyCodeLocalizations"]}
        paid = [one for one in local.get(currency, ()) if one["model"] == "PAY_AS_YOU_GO"]
        steps = sorted({(float(one.get("rangeMin") or 0.0), float(one["value"])) for one in paid})
    except StopIteration:
        raise UsageError(f"{where} does not have that part; prices stay as they are") from None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise UsageError(f"{where} has another form than it had; prices stay as they are") from None
    if currency not in local:
        raise UsageError(
            f"{where} is in {', '.join(local) or 'no currency'}, not in {currency}; prices stay as they are"
        )
    if not all(word in metric.lower() for word in UNITS.get(part, ())):
        raise UsageError(f"{where} is by {metric!r}, not by {' and '.join(UNITS[part])}; prices stay as they are")
    amounts = list(dict.fromkeys(amount for _, amount in steps))
    is_free_at_first = UNITS.get(part) == _TRAFFIC and steps[:1] == [(0.0, 0.0)]
    if len(amounts) != 1 + is_free_at_first or not 0 < amounts[-1] < 10_000:
        raise UsageError(f"{where} has no single price: {amounts}; prices stay as they are")
    free = next(start for start, amount in steps if amount == amounts[-1])
    return ListPrice(part=part, name=name, metric=metric, amount=amounts[-1], free=free)


def _get(url: str) -> bytes:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SEC) as answer:  # noqa: S310 - an address of ours
                if urllib.parse.urlsplit(answer.url).scheme != urllib.parse.urlsplit(url).scheme:
                    raise ValueError(f"{answer.url} is over another protocol")
                content, until = bytearray(), time.monotonic() + TIMEOUT_SEC
                while len(content) < _MOST_BYTES and (piece := answer.read1(_PIECE)):
                    content += piece
                    if time.monotonic() > until:
                        raise TimeoutError(f"no whole answer within {TIMEOUT_SEC:.0f} s")
                if answer.length and len(content) < _MOST_BYTES:  # `length` is what has not come
                    raise http.client.IncompleteRead(bytes(content))
            return bytes(content)
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.reason}"
            if error.code != 429 and error.code < 500:
                raise UsageError(f"the price list at {LIST} answers {why}; prices stay as they are") from None
        except (http.client.InvalidURL, ValueError, OverflowError) as error:  # of a redirect: LIST is one
            raise UsageError(
                f"the price list at {LIST} redirects to what is no address: {error}; is a proxy between? prices "
                "stay as they are"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", None) or error) or type(error).__name__
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_SEC * 2 ** (attempt - 1))
    raise RetryableError(
        f"the price list at {LIST} does not answer: {why}; check network and proxy, then the same again"
    )


def _table(settings: Settings, today: datetime.date) -> tuple[Path | None, PriceTable]:
    """(the user's own file, if there is one; the table that counts). Raises UsageError."""
    own = settings.root / (settings.cost.prices or OWN)
    with translate_errors(UsageError, PriceError, after="; nothing was written"):
        if own.exists() or settings.cost.prices is not None:
            return own, prices.read(own, today=today)
        return None, prices.read(prices.TABLE, today=today)


def changes(
    table: PriceTable, listed: Mapping[str, ListPrice], today: datetime.date
) -> dict[str, dict[str, dict[str, Any]]]:
    """What is to stand in the table: the prices of each shape with this GPU, and what is paid for besides."""
    found: dict[str, dict[str, Any]] = {}
    for name, shape in table.shapes.items():
        if shape.gpu != GPU:
            continue
        new: dict[str, Any] = {"on_demand": _dated(listed[GPU_HOUR].amount, _source(GPU_HOUR), today)}
        if shape.boot_volume is not None:
            amount = round(listed[SPACE].amount + BALANCED * listed[PERFORMANCE].amount, 6)
            new["boot_volume"] = _dated(amount, _source(f"{SPACE} and {BALANCED} times {PERFORMANCE}"), today)
        found[name] = new
    return {"shapes": found, "others": {key: _other(listed[part], today) for part, key in OTHERS.items()}}


def _other(one: ListPrice, today: datetime.date) -> dict[str, Any]:
    """What is paid for besides, as the list calls it."""
    is_traffic = UNITS[one.part] == _TRAFFIC
    return {
        "what": one.name,
        "unit": "USD per GB" if is_traffic else "USD per GB month",
        **({"free_gb": one.free} if is_traffic else {}),
        **_dated(one.amount, _source(one.part), today),
    }


def compared(table: PriceTable, found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """A line for each price that differs from the table's."""
    pairs = [
        (f"{name} {key}", getattr(table.shapes[name], key), values)
        for name, new in found["shapes"].items()
        for key, values in new.items()
    ]
    pairs += [(key, table.others.get(key), values) for key, values in found["others"].items()]
    lines = []
    for name, old, values in pairs:
        if old is None:
            lines.append(f"{name}: new, {values['amount']:g} {values['unit']}")
        elif old.amount != values["amount"]:
            lines.append(f"{name}: {old.amount:g} -> {values['amount']:g} {old.unit} (was of {old.dated})")
    return lines


def _dated(amount: float, source: str, today: datetime.date) -> dict[str, Any]:
    return {"amount": amount, "source": source, "dated": today}


def _source(parts: str) -> str:
    return f"Oracle's public price list, part {parts}"


def _fresh() -> str:
    """The project's own table without its comments, which speak of its own numbers."""
    document = yaml.safe_load(prices.TABLE.read_text(encoding="utf-8"))
    return "# Written by `inv tenancy.prices`; what it does not look up stays as you write it.\n" + yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True
    )


def _write(path: Path, text: str, today: datetime.date) -> None:
    """Written beside it first and read as reports do. Raises UsageError."""
    beside = path.with_name(f".{path.name}.new")
    try:
        write_private(beside, text.encode(), mode=0o644)
        prices.read(beside, today=today)
        beside.replace(path)
    except PriceError as error:
        raise UsageError(f"{error}; nothing was written") from None
    except OSError as error:
        raise UsageError(f"{shown(path)}: cannot be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)
