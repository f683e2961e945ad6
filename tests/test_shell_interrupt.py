"""Ctrl-C keeps what was found, and the command that is printed goes on from there; what a terminal shows meanwhile."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dmtrl
from dmtrl import checkpoint
from dmtrl.fitting import FitRequest, Interrupted, Prepared, Silence, fit, prepare
from dmtrl.journal import Journal
from dmtrl.predicting import PredictRequest, predict
from shell_data import run, shops, write


class StopsAt(Silence):
    """Somebody who presses Ctrl-C when a word has been shown so many times."""

    def __init__(self, word: str, times: int):
        self.word, self.times = word, times

    def share(self, done: float, detail: str = "") -> None:
        if self.word in detail:
            self.times -= 1
            if self.times == 0:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> FitRequest:
    data = write(shops(), tmp_path_factory.mktemp("interrupt") / "shops.parquet")
    return FitRequest([data], task="shop", target="sales", drop=["verdict"], common=False)


@pytest.fixture(scope="module")
def prepared(request_: FitRequest) -> Prepared:
    return prepare(request_)


@pytest.mark.parametrize(("word", "times"), [("fits", 1), ("fits", 17), ("fits", 55), ("round", 3)])
def test_an_interrupted_fit_goes_on(
    tmp_path: Path, request_: FitRequest, prepared: Prepared, word: str, times: int
) -> None:
    out, keep = tmp_path / "m", tmp_path / "m.checkpoint"
    with pytest.raises(Interrupted) as stopped:
        fit(prepared, request_, StopsAt(word, times), out)
    assert stopped.value.checkpoint == keep
    assert [path.name for path in tmp_path.iterdir()] == ["m.checkpoint"]
    resumed = fit(prepared, request_, None, out, resume=keep)
    whole = fit(prepared, request_)
    assert resumed.certificate_.relative_gap <= request_.tol
    assert resumed.reg_lambda_ == whole.reg_lambda_
    assert resumed.certificate_.dual <= whole.certificate_.primal
    assert whole.certificate_.dual <= resumed.certificate_.primal
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert "_journal" not in vars(resumed)


def test_a_fit_with_a_given_lambda_goes_on_from_its_weights(
    tmp_path: Path, request_: FitRequest, prepared: Prepared
) -> None:
    request = replace(request_, reg_lambda=0.01, common=None, tol=1e-7)
    with pytest.raises(Interrupted) as stopped:
        fit(prepared, request, StopsAt("round", 20), tmp_path / "m")
    resumed = fit(prepared, request, None, tmp_path / "m", stopped.value.checkpoint)
    whole = fit(prepared, request)
    assert resumed.certificate_.relative_gap <= 1e-7
    assert resumed.n_rounds_ < whole.n_rounds_
    best = whole.certificate_.primal
    assert resumed.history_[0]["objective"] < 1.01 * best < whole.history_[0]["objective"], "it begins near the best"
    np.testing.assert_allclose(resumed.coef_, whole.coef_, atol=1e-2)


def test_what_stands_in_the_journal_is_not_computed_again(
    tmp_path: Path, request_: FitRequest, prepared: Prepared
) -> None:
    """A mark in a kept score is found in the cross-validation path, so it was read and not made anew."""
    keep = tmp_path / "m.checkpoint"
    with pytest.raises(Interrupted):
        fit(prepared, request_, StopsAt("fits", 17), tmp_path / "m")
    with np.load(keep, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    assert arrays["score.wrong"].shape == (17, 5)
    arrays["score.wrong"][:] = 123.0
    with open(keep, "wb") as file:
        np.savez(file, **arrays)
    path = fit(prepared, request_, None, resume=keep).cv_path_
    assert int((path.wrong == 123.0).sum()) == 17 * 5
    assert (path.rounds > 0).all()


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path, request_: FitRequest, prepared: Prepared) -> None:
    keep = tmp_path / "m.checkpoint"
    with pytest.raises(Interrupted):
        fit(prepared, request_, StopsAt("fits", 2), tmp_path / "m")
    words = ("fit", *request_.data, "--task", "shop", "--target", "sales", "--drop", "verdict", "-o", tmp_path / "m")
    for more in (("--no-common", "--seed", "1"), ("--common",), ("--no-common", "--drop", "size")):
        result = run(*words, *more, "--resume", keep)
        assert result.exit_code == 1
        assert "belongs to a fit of other data or with other options" in result.stderr
    keep.write_bytes(keep.read_bytes()[:300])
    result = run(*words, "--no-common", "--resume", keep)
    assert result.exit_code == 1
    assert "is not a checkpoint of dmtrl fit, or is damaged" in result.stderr


def test_journal_round_trip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cell = (0.1, 1 / 3, 2)
    journal = Journal({cell: {"loss": rng.normal(size=4), "rounds": np.array(7)}}, cell, (rng.normal(size=(4, 3)),) * 2)
    journal.weights, journal.strengths = rng.normal(size=(4, 3)), (1 / 3, 0.1)
    checkpoint.write(journal, "word", tmp_path / "c")
    found = checkpoint.read(tmp_path / "c", "word")
    assert (found.last, found.strengths) == (cell, journal.strengths)
    np.testing.assert_array_equal(found.scores[cell]["loss"], journal.scores[cell]["loss"])
    np.testing.assert_array_equal(found.weights, journal.weights)
    assert found.end is not None
    np.testing.assert_array_equal(found.end[0], journal.end[0])  # type: ignore[index]


def test_ctrl_c_on_a_terminal_and_the_command_it_prints(tmp_path: Path) -> None:
    """The real command on a real terminal: the live line is read, and SIGINT sent once some folds are done."""
    data = write(shops(m=20, rows=120), tmp_path / "my shops.csv")
    words = ["fit", str(data), "--task", "shop", "--target", "sales", "--drop", "verdict", "-o", str(tmp_path / "m")]
    mine, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "-m", "dmtrl.cli", *words], stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown, sent = "", False
    while True:
        try:
            piece = os.read(mine, 4096)
        except OSError:  # how a terminal says that nobody is left
            break
        if not piece:
            break
        shown += piece.decode(errors="replace")
        if not sent and re.search(r"[3-9]\d* of 165 fits", shown):
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(mine)
    assert process.wait() == 130, shown
    assert "choosing lambda by cross-validation" in shown
    assert "Traceback" not in shown
    printed = next(line.strip() for line in shown.splitlines() if "--resume" in line)
    again = shlex.split(printed)
    assert again[: len(words) + 1] == ["dmtrl", *words]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.checkpoint", "my shops.csv"]
    result = run(*again[1:], "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["certificate"]["relative_gap"] <= 1e-3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.html", "my shops.csv"]
    assert dmtrl.load(tmp_path / "m").reg_lambda_ == found["lambda"]


def test_an_interrupted_predict_leaves_nothing(tmp_path: Path, request_: FitRequest, prepared: Prepared) -> None:
    request = replace(request_, reg_lambda=0.1)
    fit(prepared, request, None, tmp_path / "m")
    with pytest.raises(KeyboardInterrupt):
        predict(PredictRequest(tmp_path / "m", request.data, tmp_path / "out.csv"), StopsAt("rows", 1))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_ctrl_c_before_anything_is_found_writes_nothing(
    tmp_path: Path, request_: FitRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dmtrl.fitting.prepare", pressed)
    result = run("fit", *request_.data, "--task", "shop", "--target", "sales", "-o", tmp_path / "m")
    assert result.exit_code == 130
    assert "nothing was written" in result.stderr
    assert list(tmp_path.iterdir()) == []
