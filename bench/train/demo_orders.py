"""Small generated data set that needs no download: a guest's order as a sentence, and its JSON object.

    Anna at table 7 would like two coffees and a soup.      {"name": "Anna", "table": 7, "coffee": 2, "soup": 1}

An untrained model answers with a sentence; after some steps it answers with the object. Orders are drawn from one seed:
the file is equal on every machine. Only the standard library.
"""

import json
import random
from pathlib import Path

from bench.data.inputs import InputError
from bench.records.atomic_files import write_atomic

LINES, SEED = 120, 1
NAMES = (
    *("Adam", "Bella", "Carl", "Dora", "Emil", "Fiona", "Greta", "Hugo", "Ida", "Jonas", "Karin", "Leo", "Mara"),
    *("Nora", "Oskar", "Paula", "Rita", "Simon", "Tina", "Viktor", "Wanda", "Yusuf"),
)
DISHES = {
    "coffee": "coffees", "tea": "teas", "juice": "juices", "water": "waters", "soup": "soups", "salad": "salads",
    "sandwich": "sandwiches", "cake": "cakes", "pizza": "pizzas", "burger": "burgers", "omelette": "omelettes",
    "pancake": "pancakes",
}  # fmt: skip
COUNTS = ("a", "two", "three", "four", "five")
SENTENCES = (
    "{name} at table {table} would like {dishes}.",
    "Table {table}, for {name}: {dishes}, please.",
    "Please bring {dishes} to table {table}, the name is {name}.",
    "{name} here, table {table}. Could we have {dishes}?",
)


def make_orders() -> list[tuple[str, str]]:
    """Make distinct pairs (order as a sentence, JSON object)."""
    rng = random.Random(SEED)  # noqa: S311 - examples, not secrets
    pairs: dict[str, str] = {}
    while len(pairs) < LINES:
        name, table = rng.choice(NAMES), rng.randrange(1, 31)
        ordered = [(dish, rng.randrange(1, 6)) for dish in rng.sample(list(DISHES), rng.randrange(1, 4))]
        items = [f"{COUNTS[count - 1]} {dish if count == 1 else DISHES[dish]}" for dish, count in ordered]
        listed = " and ".join(filter(None, (", ".join(items[:-1]), items[-1]))).replace("a omelette", "an omelette")
        sentence = rng.choice(SENTENCES).format(name=name, table=table, dishes=listed)
        pairs[sentence] = json.dumps({"name": name, "table": table, **dict(ordered)})
    return list(pairs.items())


def make(path: Path) -> bool:
    """Write the file, or verify an existing one; return whether it was written. Raises OSError and InputError."""
    lines = (
        json.dumps({"messages": [{"role": "user", "content": sentence}, {"role": "assistant", "content": answer}]})
        for sentence, answer in make_orders()
    )
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.exists():
        if not path.is_file() or path.read_bytes() != content:
            raise InputError(f"{path}: not made by demo; move the file away and rerun demo")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    return True
