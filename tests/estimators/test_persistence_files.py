"""The file of a model: damage and foreign bytes are refused, nothing in it is run, a write is whole or not there."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from test_persistence import LABELS, TASKS, D, M, assert_same, make

from dmtrl import LocalOptions, MTRLClassifier, MTRLRegressor, storage
from dmtrl.estimators.model_file import FORMAT, load, save


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    X, y = make("two")
    path = tmp_path_factory.mktemp("whole") / "model.dmtrl"
    save(MTRLClassifier(tol=0.01).fit(X, y, tasks=LABELS["text"][TASKS]), path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "model.dmtrl"


def refused(data: bytes, path: Path) -> str:
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.dmtrl (is|was|cannot) ") as refusal:
        load(path)
    return str(refusal.value)


def test_a_file_cut_anywhere_is_refused(whole: bytes, scratch: Path) -> None:
    for end in {*range(0, 100), *range(len(whole) - 200, len(whole)), *range(0, len(whole), 97)}:
        assert "empty" in refused(whole[:end], scratch) or "cut short" in refused(whole[:end], scratch)
    assert "cut short or damaged" in refused(whole + b"\n", scratch)
    assert "damaged" in refused(whole + whole, scratch)


@given(st.data())
def test_a_changed_byte_is_refused(whole: bytes, scratch: Path, data: st.DataObject) -> None:
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3, unique=True)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    refused(bytes(damaged), scratch)


def test_every_byte_of_the_frame_counts(whole: bytes, scratch: Path) -> None:
    """Dates, attributes and offsets of a zip are covered by no checksum of its own."""
    for place in {*range(0, 60), *range(len(whole) - 400, len(whole)), *range(0, len(whole), 61)}:
        refused(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], scratch)


@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused(scratch: Path, data: bytes) -> None:
    refused(data, scratch)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.dmtrl"
    assert "is empty" in refused(b"", path)
    for content in (b"hello", b"\x80\x04\x95pickle", b"PK", b"PK\x05\x06" + bytes(18), b"{}", bytes(1000)):
        assert "not a dmtrl model" in refused(content, path) or content == b"PK"
    np.savez(tmp_path / "arrays.npz", a=np.arange(3))
    assert "not a dmtrl model" in refused((tmp_path / "arrays.npz").read_bytes(), path)


def rewrite(path: Path, change: Any) -> None:
    """The file with another header, sealed again as `save` seals it: what a later or a hostile writer could make."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members["dmtrl-model.json"])
    change(header)
    members["dmtrl-model.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = b"0" * 64
    data = path.read_bytes()[:-64]
    path.write_bytes(data + hashlib.sha256(data).hexdigest().encode())


def test_an_older_format_says_what_to_do(whole: bytes, scratch: Path) -> None:
    scratch.write_bytes(whole)
    rewrite(scratch, lambda header: header.update(format=FORMAT - 1))
    with pytest.raises(ValueError, match=f"this dmtrl reads format {FORMAT}; fit and save the model again"):
        load(scratch)


def test_a_newer_format_says_what_to_do(whole: bytes, scratch: Path) -> None:
    scratch.write_bytes(whole)
    rewrite(scratch, lambda header: header.update(format=FORMAT + 1, dmtrl="9.1.2", model="?", arrays="?"))
    with pytest.raises(
        ValueError,
        match=rf"was written by dmtrl 9.1.2 with format {FORMAT + 1}, but .* reads format {FORMAT}; install a newer",
    ):
        load(scratch)
    scratch.write_bytes(whole)
    rewrite(scratch, lambda header: None)
    load(scratch)


def test_a_file_from_before_a_parameter_has_its_default(whole: bytes, scratch: Path) -> None:
    def forget(header: Any) -> None:
        parameters = header["model"][1]["dict"]
        parameters.remove(["max_rounds", 1000])

    scratch.write_bytes(whole)
    rewrite(scratch, forget)
    model = load(scratch)
    assert model.max_rounds == 1000
    X, y = make("two")
    model.set_params(warm_start=True).fit(X, y, tasks=LABELS["text"][TASKS])


def test_a_model_that_waited_for_nobody(tmp_path: Path) -> None:
    X, y = make()
    model = MTRLRegressor(tol=0.01, engine=LocalOptions(max_staleness=8), n_jobs=2).fit(X, y, tasks=TASKS)
    save(model, tmp_path / "model.dmtrl")
    loaded = load(tmp_path / "model.dmtrl")
    assert loaded.engine == "local", "options of an engine are not saved"
    assert_same(vars(model.set_params(engine="local")), vars(loaded))


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["model"].__setitem__(0, "Pipeline"),
        lambda header: header["model"].__setitem__(0, "RFF"),
        lambda header: header["model"].__setitem__(0, "solve"),
        lambda header: header["model"][1]["dict"].append(["no_such_parameter", 1]),
        lambda header: header["model"][2]["dict"].append(["__class__", 1]),
        lambda header: header["model"][2]["dict"].append(["predict", 1]),
        lambda header: header["model"][2]["dict"].append([{"tuple": []}, 1]),
        lambda header: header["model"][2]["dict"].append(["x_", {"eval": ["1"]}]),
        lambda header: header["model"][2]["dict"].append(["x_", {"array": "nowhere"}]),
        lambda header: next(iter(header["arrays"].values())).__setitem__(2, "0" * 64),
        lambda header: header.pop("model"),
        lambda header: header.update(format="one"),
        lambda header: header.update(model=[]),
    ],
)
def test_a_file_made_by_hand_can_do_nothing(change: Any, whole: bytes, scratch: Path) -> None:
    scratch.write_bytes(whole)
    rewrite(scratch, change)
    with pytest.raises(ValueError, match="cannot be read as a dmtrl model: "):
        load(scratch)


def test_a_file_holds_no_pickle(whole: bytes, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "load", fail)
    monkeypatch.setattr(pickle, "loads", fail)
    scratch.write_bytes(whole)
    load(scratch)
    with np.load(scratch, allow_pickle=False) as file:
        assert file["MTRLClassifier.coef_"].shape == (M, D)


def test_places_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    X, y = make()
    model = MTRLRegressor(tol=0.01).fit(X, y, tasks=TASKS)
    with pytest.raises(NotFittedError, match="This MTRLRegressor instance is not fitted yet"):
        save(MTRLRegressor(), tmp_path / "model.dmtrl")
    with pytest.raises(IsADirectoryError, match="is a directory; pass the path of a file"):
        save(model, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the directory .*missing does not exist; create it first"):
        save(model, tmp_path / "missing" / "model.dmtrl")
    with pytest.raises(IsADirectoryError, match="is a directory; pass the path of a model file"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"No such file .*nothing\.dmtrl"):
        load(tmp_path / "nothing.dmtrl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_alone(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make()
    path = tmp_path / "model.dmtrl"
    save(MTRLRegressor(tol=0.01).fit(X, y, tasks=TASKS), path)
    before = path.read_bytes()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(
            OSError,
            match=r"No space left on device: the model was not saved, and existing .*model\.dmtrl",
        ):
            save(MTRLRegressor(tol=0.02).fit(X, y, tasks=TASKS), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="folders that can be synced")
def test_the_name_of_a_file_reaches_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "file", []

    def fsync(number: int) -> None:
        folder = stat.S_ISDIR(os.fstat(number).st_mode)
        synced.append((folder, path.exists()))
        if folder:
            raise OSError(22, "Invalid argument")  # as some file systems say: the file is there all the same

    monkeypatch.setattr(os, "fsync", fsync)
    storage.write(str(path), b"content")
    assert synced == [(False, False), (True, True)]
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"content"]


@pytest.mark.skipif(os.name != "posix", reason="file modes and links as POSIX has them")
def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    X, y = make()
    model = MTRLRegressor(tol=0.01).fit(X, y, tasks=TASKS)
    path, link, plain = tmp_path / "model.dmtrl", tmp_path / "link", tmp_path / "plain"
    save(model, path)
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    link.symlink_to(path)
    before = path.read_bytes()
    save(model, str(link))
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_bytes() == before, "the same model gives the same bytes"


_WRITER = """
import sys
from dmtrl.estimators.model_file import load, save
model = load(sys.argv[1])
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    save(model, sys.argv[2])
"""


@pytest.mark.subprocess
def test_two_processes_saving_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    X, y = make()
    target, source = tmp_path / "model.dmtrl", tmp_path / "source"
    mine, theirs = (MTRLRegressor(reg_lambda=lam, tol=0.01).fit(X, y, tasks=TASKS) for lam in (0.1, 1.1))
    save(mine, target)
    save(theirs, source)
    whole = {target.read_bytes(), source.read_bytes()}
    command = [sys.executable, "-c", _WRITER, str(source), str(target), "60"]
    seen = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        while writer.poll() is None:
            seen.add(target.read_bytes())
            save(mine, target)
            seen.add(target.read_bytes())
    assert writer.returncode == 0
    assert {*seen, target.read_bytes()} <= whole, "every look finds one file or the other, never a mixture"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.dmtrl", "source"]
