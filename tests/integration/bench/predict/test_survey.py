"""What of this subject starts a process."""

from bench.commands import cli


def test_survey_refuses_a_list_that_cannot_be_read_in_one_line(tiny_model, tiny_data, tmp_path, capsys):
    words = ("--model", str(tiny_model), "--data", str(tiny_data), "--trials", str(tmp_path / "none.json"))
    assert cli.main(["survey", *words]) == 2
    said = capsys.readouterr().err
    assert said == f"{tmp_path / 'none.json'}: cannot be read as text: No such file or directory\n"
