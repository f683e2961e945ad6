"""`dmtrl bench startup`: fresh processes are fresh, threads change no bit, the table subtracts what it says."""

import pytest

from dmtrl.lab.bench import startup
from dmtrl.lab.experiments.records import Record


def test_a_fresh_process_has_imported_nothing_and_reports_its_end() -> None:
    assert startup._run_fresh("import sys; print('numpy' in sys.modules)").strip() == "False"
    with pytest.raises(RuntimeError, match=r"exited with code 1: [\s\S]*no such thing"):
        startup._run_fresh("raise ValueError('no such thing')")


def test_threads_change_no_bit() -> None:
    figures = startup.measure("threads", quick=True)
    assert set(figures) == {"hinge", "logistic"}
    for one in figures.values():
        assert one["same"]
        assert len(one["one"]) == len(one["two"]) == 2


def test_the_table_says_what_is_over_what() -> None:
    seconds = {
        "numpy, scipy, scikit-learn": [1.0, 1.2, 1.1],
        "import dmtrl": [1.1, 1.2, 1.1],
        "from dmtrl import MTRLRegressor": [1.4, 1.8, 1.5],
    }
    records = [
        Record("x", {"what": "import"}, {}, {"seconds": seconds}, 1.0),
        Record("x", {"what": "first fit"}, {}, {"first": {"A": [0.9, 0.7]}, "second": {"A": [0.1, 0.1]}}, 1.0),
        Record("x", {"what": "threads"}, {}, {"hinge": {"one": [4.0, 4.0], "two": [2.0, 2.5], "same": True}}, 1.0),
    ]
    rows = {row[0]: row[1:] for row in startup.table_rows(records)}
    assert rows["import of numpy, scipy and scikit-learn"][0] == "1.10 s"
    assert rows["import dmtrl, over that"][:2] == ["0.00 s", "0.00 to 0.10"]
    assert rows["from dmtrl import MTRLRegressor, over that"][:2] == ["0.40 s", "0.40 to 0.60"]
    assert rows["first fit of A, over the second"][:2] == ["0.70 s", "0.60 to 0.80"]
    assert rows["two threads against one, hinge loss"][:2] == ["1.78 times", "1.60 to 2.00, same bits"]


def test_the_programs_that_are_timed_run() -> None:
    code = startup._FITS.format(estimator="MTRLRegressor", classes=False).replace("2000", "200")
    seconds = startup.json.loads(startup._run_fresh(code))
    assert len(seconds) == 3
    assert min(seconds) >= 0
    assert float(startup._run_fresh(startup._IMPORT.format(statement=startup.IMPORTS["import dmtrl"]))) > 0
