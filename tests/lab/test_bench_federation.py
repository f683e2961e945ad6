"""The parts of `dmtrl-lab bench federation`, without a network; tests/federation/test_flare.py has one."""

from pathlib import Path

from dmtrl.federation.simulate import simulate
from dmtrl.federation.site import ledger
from dmtrl.federation.site.site import LEDGER
from dmtrl.federation.study.study_file import read_study
from dmtrl.report.content import Table
from dmtrl_lab.bench import federation
from dmtrl_lab.experiments.experiment import Record


def test_the_study_and_its_files_fit_and_the_ledger_gives_the_figures(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("a", "b")}
    federation.write_files(files, features=3)
    (tmp_path / "study.toml").write_text(federation.study_text(3, (0.01, 0.1), folds=2))
    result = simulate(read_study(tmp_path / "study.toml"), files, tmp_path / "out")
    assert result.sites == ("a", "b")
    assert result.reg_lambda in (0.01, 0.1)
    path = tmp_path / "out" / "sites" / "a" / LEDGER
    figures = federation.figures_of(path)
    assert figures["rounds"] == sum(entry.name == "improved" for entry in ledger.entries(path))
    assert figures["ms per round"] >= 0
    params = {"sites": 2, "features": 3, "lambdas": 2, "folds": 2}
    seconds = dict.fromkeys(("one process", "keys and certificates", "start of server and sites", "FLARE"), 7.0)
    measured = {"seconds": seconds, "flare": figures, "local": figures, "same bits": False}
    tables = [item for item in federation.items([_record(params, measured)]) if isinstance(item, Table)]
    assert tables[0].rows[0][-1] == "different!"


def _record(params: dict[str, object], figures: dict[str, object]) -> Record:
    return Record("bench federation", params, {}, figures, 1.0)
