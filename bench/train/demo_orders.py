"""A small data set of our own, made anywhere without a download: a guest's order in words, and the same as JSON.

    Anna at table 7 would like two coffees and a soup.      {"name": "Anna", "table": 7, "coffee": 2, "soup": 1}

A model that was never told to answers with a sentence; after some steps it answers with the object. Orders are drawn
from one seed: the same file on every machine. Standard library alone.
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


def orders() -> list[tuple[str, str]]:
    """(the order in words, its object), each once."""
    chooser = random.Random(SEED)  # noqa: S311 - examples, not secrets
    found: dict[str, str] = {}
    while len(found) < LINES:
        name, table = chooser.choice(NAMES), chooser.randrange(1, 31)
        ordered = [(dish, chooser.randrange(1, 6)) for dish in chooser.sample(list(DISHES), chooser.randrange(1, 4))]
        words = [f"{COUNTS[count - 1]} {dish if count == 1 else DISHES[dish]}" for dish, count in ordered]
        listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))).replace("a omelette", "an omelette")
        sentence = chooser.choice(SENTENCES).format(name=name, table=table, dishes=listed)
        found[sentence] = json.dumps({"name": name, "table": table, **dict(ordered)})
    return list(found.items())


def make(path: Path) -> bool:
    """Write the file, or verify it; whether it was written. Raises OSError, and InputError for another file."""
    lines = (
        json.dumps({"messages": [{"role": "user", "content": words}, {"role": "assistant", "content": answer}]})
        for words, answer in orders()
    )
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.exists():
        if not path.is_file() or path.read_bytes() != content:
            raise InputError(f"{path}: is not what demo makes; move it away and run demo again")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    return True
