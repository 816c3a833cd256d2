"""`inv data.check` in a project: the data report.

Not covered: a worker in a pod; the query uses the same host interface as all of `tasks.clients.workers`.
"""

import json

from tests.system.conftest import Project


def lines(count: int) -> str:
    return "".join(json.dumps({"instruction": f"Say {n}", "input": "", "output": f"{n}!"}) + "\n" for n in range(count))


def test_the_data_is_read_and_counted(project: Project) -> None:
    (project.folder / "a.jsonl").write_text(lines(200))
    more = project.folder / "train.json"
    train = {"data": [str(project.folder / "a.jsonl")], "max_seq_len": 64, "validation_fraction": 0.1}
    more.write_text(json.dumps({"train": train}))
    project.options = ("-f", str(more))
    done = project.inv("data.check", "--json")
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert ([file["kind"] for file in report["files"]], report["was_cached"]) == (["Alpaca"], False)
    assert report["examples"] + report["validation_examples"] == 200
    assert report["left_out"] == 0
