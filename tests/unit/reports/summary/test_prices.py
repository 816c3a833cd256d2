"""The price table: prices of a run's GPU, and refusal of invalid tables."""

from datetime import date
from pathlib import Path

import pytest
import yaml

from reports.summary.prices import PriceError, Pricing, read_table, select_prices
from tests.support.cases import load_cases

A10 = ("NVIDIA A10",)


def dated(**changed):
    return {"amount": 4.0, "unit": "USD per GPU hour", "source": "list", "dated": date(2026, 1, 1)} | changed


def table(folder, **changed):
    """Write a table with one shape; `changed` replaces its keys, None removes them."""
    shape = {"gpu": "NVIDIA X", "gpus": 2, "on_demand": dated(), "preemptible": dated(amount=2.0)} | changed
    path = folder / "my prices.yaml"
    shape = {key: value for key, value in shape.items() if value is not None}
    path.write_text(yaml.safe_dump({"schema_version": 1, "shapes": {"X.1": shape}}))
    return path


def test_the_projects_table_is_valid_and_has_the_a10():
    first, *others = select_prices(Pricing(), A10)
    assert (first.name, first.usd_per_gpu_hour, first.shape) == ("on-demand", 2.0, "VM.GPU.A10.1")
    assert "B95909" in first.source
    assert first.dated is not None
    assert [(other.name, other.usd_per_gpu_hour) for other in others] == [
        ("reference study", 0.60),
        ("reference study, spot", 0.18),
    ]
    assert first.boot_volume.usd_per_hour == pytest.approx(50 * 0.0425 / 730)
    traffic = first.other_prices[1].description
    assert traffic.startswith(
        "traffic out of North America, Europe and the UK 0.0085 USD per GB after 10,240 GB a month "
    )


def test_a_price_in_the_settings_comes_before_the_tables_and_the_preemptible_one_last(tmp_path):
    pricing = Pricing(usd_per_gpu_hour=1.5, source="our contract", table=table(tmp_path))
    selected = select_prices(pricing, ["NVIDIA X"])
    assert [(price.name, price.usd_per_gpu_hour, price.gpus_per_node) for price in selected] == [
        ("set", 1.5, 1),
        ("on-demand", 4.0, 2),
        ("preemptible", 2.0, 2),
    ]


@pytest.mark.parametrize("devices", [("CPU",), ("NVIDIA T4",), ("NVIDIA A10", "NVIDIA H200"), ()])
def test_an_unknown_gpu_and_a_mixed_run_have_no_price(devices):
    assert select_prices(Pricing(), devices) == ()


def test_a_named_shape_is_priced_whatever_ran():
    assert select_prices(Pricing(shape="VM.GPU.A10.1"), ("CPU",))[0].usd_per_gpu_hour == 2.0


@pytest.mark.parametrize(
    ("pricing", "message"),
    [
        (
            Pricing(shape="VM.GPU.A11"),
            r"cost\.shape: 'VM\.GPU\.A11': .*; .*prices\.yaml .*'VM\.GPU\.A10\.1'",
        ),
        (
            Pricing(table=Path("none.yaml")),
            r"none\.yaml: .*No such file or directory; .*cost\.prices",
        ),
    ],
)
def test_an_unknown_shape_and_no_table_are_refused(pricing, message):
    with pytest.raises(PriceError, match=message):
        select_prices(pricing, A10)


@pytest.mark.parametrize("case", load_cases(__file__, "invalid_shapes.yaml"))
def test_an_invalid_shape_is_refused_in_one_line_with_the_key(tmp_path, case):
    path = table(
        tmp_path, **{key: dated(**item) if isinstance(item, dict) else item for key, item in case["input"].items()}
    )
    with pytest.raises(PriceError) as refused:
        select_prices(Pricing(table=path), ["NVIDIA X"])
    assert str(refused.value).startswith(f"{path}: shapes.X.1: {case['expected']}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("case", load_cases(__file__, "invalid_price_files.yaml"))
def test_a_file_that_is_not_a_table_is_refused_in_one_line(tmp_path, case):
    path = tmp_path / "prices.yaml"
    path.write_bytes(case["input"].encode("latin-1"))
    with pytest.raises(PriceError) as refused:
        read_table(path)
    assert case["expected"] in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
