"""The commands of a study that need no network: draft, check, approve, simulate, log."""

import json
from pathlib import Path

import pytest

from support.shell_data import run, write
from support.studies import CLINIC, clinic_files, clinic_table


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.toml"
    path.write_text(CLINIC.replace("lambda = [0.3, 0.03]", "lambda = [0.3]").replace("common = [0.0, 1.0]", ""))
    return path


WORDS = [
    ("study", "new"),
    ("study", "simulate"),
    ("site", "check"),
    ("site", "approve"),
    ("site", "withdraw"),
    ("site", "log"),
]


@pytest.mark.parametrize("words", WORDS)
def test_help_fits_a_screen_and_shows_an_example(words: tuple[str, str]) -> None:
    result = run(*words, "--help", columns="80")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert f"dmtrl {' '.join(words)} " in result.output.split("Usage:")[1].split("\n", 1)[1]


def test_a_study_is_drafted(tmp_path: Path) -> None:
    like = write(clinic_table(0), tmp_path / "north.csv")
    words = ("study", "new", tmp_path / "trial.toml", "--like", like, "--target", "ill", "--drop", "remark")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "3 number, 3 category, 1 date columns" in result.output
    assert "target 'ill': 'yes' is the positive class" in result.output
    again = run(*words)
    assert again.exit_code == 1
    assert "already exists; choose another name, or pass --force" in again.output
    assert run(*words, "--force").exit_code == 0
    wrong = run("study", "new", tmp_path / "x.toml", "--like", like, "--target", "il")
    assert "there is no column 'il'; did you mean 'ill'?" in wrong.output


def test_a_bad_study_file_gives_a_sentence_with_the_line(tmp_path: Path, study: Path) -> None:
    study.write_text(CLINIC.replace("folds = 3", "folds = 1"))
    result = run("site", "check", clinic_files(tmp_path)["north"], "--study", study)
    assert result.exit_code == 1
    assert result.output.strip() == f"Error: {study}, line 14: [fit] folds must be an integer of at least 2, got 1"


def test_a_file_is_checked(tmp_path: Path, study: Path) -> None:
    result = run("site", "check", clinic_files(tmp_path)["north"], "--study", study)
    assert result.exit_code == 0
    assert "The file fits the study: 60 of 60 rows would be used." in result.output
    bad = write(clinic_table(0).drop_columns(["dose"]), tmp_path / "bad.csv")
    result = run("site", "check", bad, "--study", study)
    assert result.exit_code == 1
    assert "error: the column 'dose' is missing" in result.stdout
    assert result.stderr == f"Error: {bad} does not fit the study; correct the 1 error listed above\n"


def test_a_study_is_approved(tmp_path: Path, study: Path) -> None:
    data, site = clinic_files(tmp_path)["north"], tmp_path / "site"
    lost = run("site", "approve", study, "--site", site)
    assert "is not the folder of a site; to make it one, pass --data and --name" in lost.output
    result = run("site", "approve", study, "--site", site, "--data", data, "--name", "north", "--yes")
    assert result.exit_code == 0, result.output
    assert "What leaves this site, at most:" in result.output
    assert "Approved: " in result.output
    approval = json.loads((site / "approval.json").read_text())
    assert approval["hash"] in result.output
    assert approval["text"] in result.output
    again = run("site", "approve", study, "--site", site, "--data", data, "--name", "north", "--yes")
    assert "already names the site" in again.output
    withdrawn = run("site", "withdraw", "--site", site)
    assert f"Withdrawn: clinic {approval['hash'][:16]}" in withdrawn.output
    assert "no study is approved in" in run("site", "withdraw", "--site", site).output


def test_an_approval_can_be_declined(tmp_path: Path, study: Path) -> None:
    data, site = clinic_files(tmp_path)["north"], tmp_path / "site"
    result = run("site", "approve", study, "--site", site, "--data", data, "--name", "north")  # no answer on stdin
    assert result.exit_code == 1
    assert not site.exists()
    words = ("site", "approve", study, "--site", site, "--data", data, "--name", "north")
    result = run(*words, answer="n\n")
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: not approved; nothing was written\n")
    assert not site.exists()


def test_a_file_that_does_not_fit_cannot_be_approved(tmp_path: Path, study: Path) -> None:
    data = write(clinic_table(0).drop_columns(["dose"]), tmp_path / "bad.csv")
    result = run("site", "approve", study, "--site", tmp_path / "s", "--data", data, "--name", "north", "--yes")
    assert result.exit_code == 1
    assert "error: the column 'dose' is missing" in result.stdout
    assert result.stderr == f"Error: not approved: {data} does not fit the study; correct the 1 error listed above\n"
    assert not (tmp_path / "s").exists()
    words = ("site", "approve", study, "--site", tmp_path / "s", "--name", "north", "--yes", "--data")
    result = run(*words, tmp_path / "nope.csv")
    assert result.output.strip() == f"Error: there is no file {tmp_path / 'nope.csv'}; check its name and folder"
    assert not (tmp_path / "s").exists()
    assert run(*words, clinic_files(tmp_path)["north"]).exit_code == 0


def test_a_study_is_simulated_and_its_ledger_shown(tmp_path: Path, study: Path) -> None:
    text = study.read_text() + "\n[limits]\nrows_per_task = 20\n"
    study.write_text(text)
    files, out = clinic_files(tmp_path, rows=120), tmp_path / "out"
    words = ("study", "simulate", study, *(f"{name}={path}" for name, path in files.items()), "--out", out)
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "within" in result.output
    assert "rows (rounded down)" in result.output.splitlines()[-7]
    assert f"page: {out / 'report.html'}" in result.output
    page = (out / "report.html").read_text()
    assert "Tasks of each site" in page
    assert "No row left its site" in page
    occupied = run(*words)
    assert occupied.exit_code == 1
    assert "is not empty; choose another one, or pass --force" in occupied.output
    site = out / "sites" / "west"
    log = run("site", "log", "--site", site, "--last", "2")
    assert "finished" in log.output
    assert "different numbers" in log.output
    lines = run("site", "log", "--site", site, "--json").output.splitlines()
    assert json.loads(lines[0])["name"] == "welcome"
    intact = run("site", "log", "--site", site, "--verify").output
    assert f"The ledger is intact: {len(lines)} lines." in intact
    assert f"Last hash: {json.loads(lines[-1])['hash']}" in intact
    ledger = site / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"name":"spread"', '"name":"nothing"'))
    broken = run("site", "log", "--site", site, "--verify")
    assert broken.exit_code == 1
    assert "was changed after it was written" in broken.output
    ledger.write_text("[1]\n")
    for option in ("--json", "--verify"):
        broken = run("site", "log", "--site", site, option)
        assert broken.output.strip() == f"Error: {ledger}, line 1 is not a line of a ledger: the file was changed"
    ledger.unlink()
    ledger.with_suffix(".head").unlink()
    missing = run("site", "log", "--site", site, "--verify")
    assert missing.exit_code == 1
    assert "ledger.jsonl is missing or empty, but" in missing.output


def test_a_simulation_refuses_wrong_words(tmp_path: Path, study: Path) -> None:
    result = run("study", "simulate", study, "north", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "not of the form SITE=FILE" in result.output
    path = clinic_files(tmp_path)["north"]
    result = run("study", "simulate", study, f"a={path}", f"a={path}", "--out", tmp_path / "out")
    assert "a site is named twice" in result.output
    result = run("study", "simulate", study, f"a={path}", "--out", tmp_path / "out")
    assert "the study needs at least 2 sites, got 1" in result.output
    result = run("study", "simulate", study, f"a={path}", f"b={tmp_path / 'nope.csv'}", "--out", tmp_path / "out")
    assert "nope.csv" in result.output
    assert result.exit_code == 1
    result = run("study", "simulate", study, f"a={path}", f"b c={path}", "--out", tmp_path / "out")
    assert "letters, digits, - and _ only, got 'b c'" in result.output
    assert not (tmp_path / "out").exists(), "nothing is written before everything was checked"


def test_a_refusal_is_one_sentence(tmp_path: Path, study: Path) -> None:
    files = clinic_files(tmp_path)
    bad = write(clinic_table(0).drop_columns(["dose"]), tmp_path / "bad.csv")
    result = run("study", "simulate", study, f"a={files['north']}", f"b={bad}", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "Error: b: its file does not fit the study: the column 'dose' is missing" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
