"""`dmtrl-lab bench startup`: fresh processes are fresh, cold ones compile, the table subtracts what it says."""

import json

import pytest

from dmtrl_lab.bench import startup
from dmtrl_lab.experiments.experiment import Record


@pytest.mark.subprocess
def test_a_fresh_process_has_imported_nothing_and_reports_its_end() -> None:
    code = "import os, sys; print('numpy' in sys.modules, os.environ['NUMBA_CACHE_DIR'])"
    assert startup._run_fresh(code, NUMBA_CACHE_DIR="cache").split() == ["False", "cache"]
    with pytest.raises(RuntimeError, match=r"exited with code 1: [\s\S]*no such thing"):
        startup._run_fresh("raise ValueError('no such thing')")


def test_the_table_says_what_is_over_what() -> None:
    seconds = {
        "numpy, scipy, scikit-learn": [1.0, 1.2, 1.1],
        "import dmtrl": [1.1, 1.2, 1.1],
        "from dmtrl import MTRLRegressor": [1.4, 1.8, 1.5],
    }
    records = [
        Record("x", {"what": "import"}, {}, {"seconds": seconds}, 1.0),
        Record("x", {"what": "first fit"}, {}, {"first": {"A": [0.9, 0.7]}, "second": {"A": [0.1, 0.1]}}, 1.0),
        Record("x", {"what": "cold"}, {}, {kind: {"first": 9.0, "second": 0.1} for kind in startup.KINDS}, 1.0),
    ]
    rows = {row[0]: row[1:] for row in startup.table_rows(records)}
    assert rows["import of numpy, scipy, scikit-learn"][0] == "1.10 s"
    assert rows["import dmtrl, over that"][:2] == ["0.00 s", "0.00 to 0.10"]
    assert rows["from dmtrl import MTRLRegressor, over that"][:2] == ["0.40 s", "0.40 to 0.60"]
    assert rows["first fit of A, over the second"][:2] == ["0.70 s", "0.60 to 0.80"]
    assert rows["cold first fit, dense float64"] == ["9.0 s", "one run", "at most 10 s"]
    assert rows["cold first fit, CSR float32, after the ones above"][-1] == "at most 5 s"


@pytest.mark.subprocess
def test_the_programs_that_are_timed_run() -> None:
    for estimator, X in (("MTRLRegressor", startup.KINDS["dense float64"]), ("MTRLClassifier", "sparse.csr_matrix(X)")):
        seconds = json.loads(startup._run_fresh(startup._fits(estimator, X).replace("2000", "800")))
        assert len(seconds) == 3
        assert min(seconds) >= 0
    assert float(startup._run_fresh(startup._IMPORT.format(statement=startup.IMPORTS["import dmtrl"]))) > 0


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_cold_fit_compiles() -> None:
    (figures,) = startup._cold_fits({"dense float64": startup.KINDS["dense float64"]}).values()
    assert figures["first"] > figures["second"]
