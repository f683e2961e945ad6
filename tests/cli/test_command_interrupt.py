"""Ctrl-C keeps what was found, and the command that is printed goes on from there; what a terminal shows meanwhile."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dmtrl
from dmtrl import MTRLRegressor, storage
from dmtrl.cli.display import Silent
from dmtrl.exceptions import NoCheckpointError
from dmtrl.progress import NoProgress, Progress
from dmtrl.solver.checkpoint import newest
from dmtrl.workflows.fit import Interrupted, fit_table
from dmtrl.workflows.predict import predict
from dmtrl.workflows.prepare import TrainingTable, prepare
from dmtrl.workflows.requests import FitRequest, PredictRequest
from support.shell_data import error_of, run, shops, write


class StopsAt(Silent):
    """Somebody who presses Ctrl-C when a word has been shown so many times."""

    def __init__(self, word: str, times: int):
        self.word, self.times = word, times

    def update(self, done: float, detail: str = "") -> None:
        if self.word in detail:
            self.times -= 1
            if self.times == 0:
                signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def sigint_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt; a process that a shell starts in the background ignores it otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> FitRequest:
    data = write(shops(), tmp_path_factory.mktemp("interrupt") / "shops.parquet")
    return FitRequest([data], task="shop", target="sales", drop=["verdict"], common=False)


@pytest.fixture(scope="module")
def table(request_: FitRequest) -> TrainingTable:
    return prepare(request_)


def fit(
    table: TrainingTable, request: FitRequest, progress: Progress | None = None, out: Path | None = None, **places: Any
) -> Any:
    """The model that is fitted to a prepared table. places: `resume` and `checkpoint`."""
    return fit_table(table, replace(request, out=out, **places), progress).model


def same_bits(model: Any, other: Any) -> None:
    """All that was learned is the same to the last bit, whatever it took."""
    for name in ("coef_", "intercept_", "common_coef_"):
        assert getattr(model, name).tobytes() == getattr(other, name).tobytes(), name
    for name in ("certificate_", "reg_lambda_", "common_strength_"):
        assert getattr(model, name) == getattr(other, name), name
    assert np.asarray(model.task_covariance_).tobytes() == np.asarray(other.task_covariance_).tobytes()
    for one, two in zip(model.history_, other.history_, strict=True):
        assert repr(one | {"seconds": 0}) == repr(two | {"seconds": 0})
    if hasattr(model, "cv_results_"):
        for name, values in vars(model.cv_results_).items():
            assert values.tobytes() == getattr(other.cv_results_, name).tobytes(), name


@pytest.fixture(scope="module")
def whole(request_: FitRequest, table: TrainingTable) -> Any:
    return fit(table, request_)


@pytest.mark.parametrize(("word", "times"), [("fits", 1), ("fits", 17), ("fits", 23), ("fits", -1), ("round", 3)])
def test_interrupted_fit_resumes_to_the_same_bits(
    tmp_path: Path, request_: FitRequest, table: TrainingTable, whole: Any, word: str, times: int
) -> None:
    out, keep = tmp_path / "m", tmp_path / "m.checkpoint"
    times = int((whole.cv_results_.rounds > 0).sum()) if times < 0 else times  # the last one
    with pytest.raises(Interrupted) as stopped:
        fit(table, request_, StopsAt(word, times), out)
    assert stopped.value.checkpoint == keep
    assert [path.name for path in tmp_path.iterdir()] == ["m.checkpoint"]
    resumed = fit(table, request_, None, out, resume=keep)
    same_bits(resumed, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert "_keeper" not in vars(resumed)


def test_fit_interrupted_many_times_resumes_to_the_same_bits(
    tmp_path: Path, request_: FitRequest, table: TrainingTable
) -> None:
    request = replace(request_, reg_lambda=0.01, common=None, tol=1e-7)
    keep, times = None, 0
    while True:
        try:
            resumed = fit(table, request, StopsAt("round", 6), tmp_path / "m", resume=keep)
            break
        except Interrupted as stopped:
            keep, times = stopped.checkpoint, times + 1
    assert times > 2
    same_bits(resumed, fit(table, request))


def kinds_of_places(folder: Path) -> dict[str, str]:
    return {
        "folder": str(folder / "kept"),
        "file URL": f"file://{folder}/kept",
        "memory URL": f"memory://{folder}/kept",
    }


@pytest.mark.parametrize("kind", ["folder", "file URL", "memory URL"])
@pytest.mark.parametrize("again", ["as printed", "resume alone", "a version"])
def test_checkpoint_option_and_its_resume_command(
    tmp_path: Path, request_: FitRequest, monkeypatch: pytest.MonkeyPatch, kind: str, again: str
) -> None:
    """A folder or a URL: what Ctrl-C prints goes on from there and is kept there, and in the end only versions go."""
    place = kinds_of_places(tmp_path)[kind]
    storage.make_folder(storage.join(place, "version-7"))
    storage.write(storage.join(place, "notes.txt"), b"mine")
    storage.write(storage.join(place, "version-7/data.csv"), b"mine too")
    words = ["fit", *map(str, request_.data), "--task", "shop", "--target", "sales", "--drop", "verdict"]
    words += ["--lambda", "0.01", "--tol", "1e-7", "--no-page", "-o", str(tmp_path / "m")]
    said, resume = ["--checkpoint", place], []
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("dmtrl.cli.fit.display", lambda quiet: nullcontext(StopsAt("round", 4)))
            result = run(*words, *said, *resume)
        assert result.exit_code == 130, result.output
        line = result.stderr.splitlines()[-1].strip()
        assert line == shlex.join(["dmtrl", *words, *said, "--resume", place])
        assert [path.name for path in tmp_path.iterdir() if path.name != "kept"] == [], "nothing beside the model"
        said = said if again == "as printed" else []
        resume = ["--resume", str(newest(place)) if again == "a version" else place]
    words += [*said, *resume]
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    undisturbed = run(*words[: words.index("-o")], "-o", tmp_path / "whole", "--json")
    assert undisturbed.exit_code == 0, undisturbed.output
    same_bits(dmtrl.load(tmp_path / "m"), dmtrl.load(tmp_path / "whole"))
    assert json.loads(result.stdout)["rounds"] == json.loads(undisturbed.stdout)["rounds"] > 8
    assert storage.names(place) == ["notes.txt", "version-7"]
    assert storage.names(storage.join(place, "version-7")) == ["data.csv"]


def test_checkpoint_locations_that_are_refused(tmp_path: Path, request_: FitRequest, table: TrainingTable) -> None:
    taken = f"memory://{tmp_path}/taken"
    with pytest.raises(Interrupted) as stopped:
        fit(table, request_, StopsAt("fits", 2), tmp_path / "m", checkpoint=taken)
    assert stopped.value.checkpoint == taken
    before = storage.names(taken)
    words = ("fit", *request_.data, "--task", "shop", "--target", "sales", "--drop", "verdict", "--lambda", "0.1")
    words = (*words, "--no-page", "-o", tmp_path / "m")
    go_on = f"{taken} holds the checkpoint of an interrupted fit; pass --resume {taken} to continue it"
    with pytest.raises(Interrupted):
        fit(table, request_, StopsAt("fits", 2), tmp_path / "other")
    cases = {
        ("--checkpoint", taken): go_on,
        ("--checkpoint", taken, "--resume", tmp_path / "other.checkpoint"): go_on,
        ("--checkpoint", "nosuch://place"): "cannot open nosuch://place",
        ("--resume", "nosuch://place/"): "cannot open nosuch://place",
        ("--resume", f"memory://{tmp_path}/nothing"): f"no complete checkpoint at memory://{tmp_path}/nothing",
        ("--checkpoint", ""): "the path of a checkpoint must be a folder or URL",
        ("--checkpoint", tmp_path / "m"): "the model and its checkpoint must have different paths",
    }
    for more, sentence in cases.items():
        result = run(*words, *more)
        assert result.exit_code == 1, (more, result.output)
        assert sentence in result.stderr.splitlines()[-1]
    assert storage.names(taken) == before
    assert run(*words, "--checkpoint", taken, "--force").exit_code == 0
    assert storage.names(taken) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "other.checkpoint"]


def test_ctrl_c_before_the_first_round_keeps_the_old_checkpoint(
    tmp_path: Path, request_: FitRequest, table: TrainingTable
) -> None:
    """A fit that takes the place of another, but is stopped before it has got anywhere."""
    with pytest.raises(Interrupted):
        fit(table, request_, StopsAt("fits", 2), tmp_path / "m")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    request = replace(request_, reg_lambda=0.1)

    class AtOnce(NoProgress):
        def stage(self, text: str) -> None:
            if text == "fitting":
                monkeypatch.setattr(MTRLRegressor, "fit", pressed)

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(Interrupted) as stopped:
        fit(table, request, AtOnce(), tmp_path / "m")
    assert stopped.value.checkpoint is None
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_finished_fits_are_read_from_the_checkpoint(tmp_path: Path, request_: FitRequest, table: TrainingTable) -> None:
    """A mark in a kept score is found in the cross-validation path, so it was read and not made anew."""
    keep = tmp_path / "m.checkpoint"
    with pytest.raises(Interrupted):
        fit(table, request_, StopsAt("fits", 17), tmp_path / "m")
    file = Path(str(newest(str(keep)))) / "coordinator.npz"
    header, arrays = storage.load(str(file), "dmtrl checkpoint")
    assert arrays["score.wrong"].shape == (17, 5)
    arrays["score.wrong"][:] = 123.0
    storage.save(str(file), header, arrays)
    path = fit(table, request_, None, resume=keep).cv_results_
    assert int((path.wrong == 123.0).sum()) == 17 * 5
    assert (path.rounds[..., :2] > 0).all(), "every candidate is tried on the first folds"


def test_new_fit_does_not_overwrite_a_checkpoint(tmp_path: Path, request_: FitRequest, table: TrainingTable) -> None:
    out, keep = tmp_path / "m", tmp_path / "m.checkpoint"
    with pytest.raises(Interrupted):
        fit(table, request_, StopsAt("fits", 2), out)
    before = {path: path.read_bytes() for path in keep.rglob("*") if path.is_file()}
    words = ("fit", *request_.data, "--task", "shop", "--target", "sales", "--drop", "verdict", "-o", out)
    result = run(*words, "--lambda", "0.1", "--no-page")
    assert result.exit_code == 1
    assert {path: path.read_bytes() for path in keep.rglob("*") if path.is_file()} == before
    assert run(*words, "--lambda", "0.1", "--no-page", "--force").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_resumed_fit_interrupted_at_once_keeps_its_checkpoint(
    tmp_path: Path, request_: FitRequest, table: TrainingTable
) -> None:
    """The first fits of the resumed run are read from the checkpoint, so that nothing new is written yet."""
    with pytest.raises(Interrupted) as first:
        fit(table, request_, StopsAt("fits", 5), tmp_path / "m")
    kept = newest(str(first.value.checkpoint))
    with pytest.raises(Interrupted) as second:
        fit(table, request_, StopsAt("fits", 2), tmp_path / "m", resume=first.value.checkpoint)
    assert newest(str(second.value.checkpoint)) == kept
    whole = fit(table, request_, NoProgress(), tmp_path / "whole")
    resumed = fit(table, request_, NoProgress(), tmp_path / "m", resume=second.value.checkpoint)
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()


def test_checkpoint_of_another_problem_is_refused(tmp_path: Path, request_: FitRequest, table: TrainingTable) -> None:
    keep = tmp_path / "m.checkpoint"
    with pytest.raises(Interrupted):
        fit(table, request_, StopsAt("fits", 2), tmp_path / "m")
    words = ("fit", *request_.data, "--task", "shop", "--target", "sales", "--drop", "verdict", "-o", tmp_path / "m")
    cases = {
        ("--no-common", "--seed", "1"): "",
        ("--common",): ": common is [1.0, 10.0] here and [0.0] there",
        ("--no-common", "--own", "2"): ": own is [2.0] here and [0.0, 3.0] there",
        ("--no-common", "--drop", "size"): "",
    }
    for more, found in cases.items():
        result = run(*words, *more, "--resume", keep)
        assert result.exit_code == 1
        assert f"is a checkpoint of another problem or of other settings{found}" in result.stderr
    other = shops()
    changed = write(other.set_column(1, "size", other["size"].combine_chunks()[::-1]), tmp_path / "changed.parquet")
    result = run("fit", changed, *words[2:], "--no-common", "--resume", keep)
    assert result.exit_code == 1
    assert "was saved with other rows" in result.stderr or "another problem" in result.stderr
    state = Path(str(newest(str(keep)))) / "coordinator.npz"
    state.write_bytes(state.read_bytes()[:300])
    result = run(*words, "--no-common", "--resume", keep)
    assert result.exit_code == 1
    assert "is damaged or is not a dmtrl checkpoint file" in result.stderr
    assert isinstance(error_of(*words, "--no-common", "--resume", tmp_path / "nothing"), NoCheckpointError)


# Runs dmtrl, which waits after 40 fits until SIGINT has reached the handler: it cannot finish first on a busy machine.
WAITS_FOR_SIGINT = """
import signal, sys, time
from dmtrl.cli import display, main

update_display = display.Live.update

def update(self, done, detail=""):
    update_display(self, done, detail)
    while detail.startswith("40 of") and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        time.sleep(0.01)

display.Live.update = update
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.subprocess
def test_ctrl_c_on_a_terminal_prints_a_resume_command_that_works(tmp_path: Path) -> None:
    """The real command on a real terminal: the test reads the live line and sends SIGINT once some folds are done."""
    data = write(shops(m=8, rows=60), tmp_path / "my shops.csv")
    words = ["fit", str(data), "--task", "shop", "--target", "sales", "--drop", "verdict", "-o", str(tmp_path / "m")]
    mine, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    command = [sys.executable, "-c", WAITS_FOR_SIGINT, *words]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
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
        if not sent and re.search(r"[3-9]\d* of \d+ fits", shown):
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
    quiet = run(*words[:-1], tmp_path / "whole", "--no-page", "--quiet")
    assert quiet.exit_code == 0, quiet.output
    same_bits(dmtrl.load(tmp_path / "m"), dmtrl.load(tmp_path / "whole"))
    (tmp_path / "whole").unlink()
    assert found["certificate"]["relative_gap"] <= 1e-3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.html", "my shops.csv"]
    assert dmtrl.load(tmp_path / "m").reg_lambda_ == found["lambda"]


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_missing_checkpoint_is_refused_before_rows_are_read(
    tmp_path: Path, request_: FitRequest, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    read: list[object] = []
    monkeypatch.setattr("dmtrl.workflows.fit.prepare", lambda *_: read.append(1))
    words = ("fit", *request_.data, "--task", "shop", "--target", "sales", "-o", tmp_path / "m", *more)
    assert isinstance(error_of(*words, "--resume", tmp_path / "nowhere"), NoCheckpointError)
    assert not read


def test_interrupted_predict_writes_nothing(tmp_path: Path, request_: FitRequest, table: TrainingTable) -> None:
    request = replace(request_, reg_lambda=0.1)
    fit(table, request, None, tmp_path / "m")
    with pytest.raises(KeyboardInterrupt):
        predict(PredictRequest(tmp_path / "m", request.data, tmp_path / "out.csv"), StopsAt("rows", 1))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_ctrl_c_while_reading_writes_nothing(
    tmp_path: Path, request_: FitRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dmtrl.workflows.fit.prepare", pressed)
    result = run("fit", *request_.data, "--task", "shop", "--target", "sales", "-o", tmp_path / "m")
    assert result.exit_code == 130
    assert "nothing was written" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("dmtrl.workflows.demo.run_demo", ("demo", "--no-page")),
        ("dmtrl.workflows.study.simulate_study", ("study", "simulate", "s.toml", "a=a.csv", "-o", "out")),
        ("dmtrl.workflows.requests.ExportRequest.check", ("export", "m.dmtrl", "-o", "m.csv")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_ends_every_command_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, words: tuple[str, ...]
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, pressed)
    result = run(*words)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "Traceback" not in result.stderr
