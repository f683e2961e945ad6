"""Files that somebody else wrote: invitations, requests, and the coordinator's own file after a change."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason='needs NVIDIA FLARE: pip install "dmtrl[federation]"')

from dmtrl.federation.flare.invitation import Invitation
from dmtrl.federation.flare.server.folder import StudyServer, admit, provision
from dmtrl.federation.flare.services import compose_file
from dmtrl.federation.protection.noise.accounting import mu_of
from dmtrl.federation.site.approval import create_site
from dmtrl.federation.site.budget import Budget
from support.shell_data import run
from support.studies import CLINIC, clinic_files

FINGERPRINT = "SHA256:" + ":".join(["AB"] * 32)
VALID: dict[str, Any] = {
    "site": "north",
    "project": "clinic",
    "host": "server.example.org",
    "port": 8102,
    "fingerprint": FINGERPRINT,
    "study": CLINIC,
}


def invitation(folder: Path, **changes: Any) -> Path:
    path = folder / "north.invitation.json"
    path.write_text(json.dumps({**VALID, **changes}))
    return path


def test_a_second_provision_is_refused(tmp_path: Path) -> None:
    study = tmp_path / "clinic.toml"
    study.write_text(CLINIC)
    (tmp_path / "federation.json").write_text("{}")
    result = run("study", "provision", study, "-C", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.endswith("is already a coordinator's folder: it has federation.json; choose another folder\n")


def test_an_image_is_built_from_a_clone(tmp_path: Path) -> None:
    """There is no release yet: the files that the image copies are those of the repository."""
    text = compose_file("site", "north", tmp_path, 8102)
    root = Path(__file__).resolve().parents[2]
    copied = [name for line in re.findall(r"COPY (.*) /", text) for name in line.split()]
    assert copied == ["pyproject.toml", "README.md", "LICENSE", "src"]
    assert all((root / name).exists() for name in copied)
    assert 'pip install "/source[federation]"' in text


def test_a_valid_invitation_is_read(tmp_path: Path) -> None:
    assert Invitation.read(invitation(tmp_path)) == Invitation(**VALID)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"host": "a\nb"}, "the host must be"),
    ({"host": "server.example.org\n"}, "the host must be"),
    ({"host": "-x"}, "the host must be"),
    ({"host": 5}, "the host must be"),
    ({"port": "8102\n"}, "the port must be an integer"),
    ({"port": 0}, "the port must be an integer"),
    ({"port": True}, "the port must be an integer"),
    ({"site": "../north"}, "its site is '../north'"),
    ({"site": ["north"]}, "its site is"),
    ({"project": "a b"}, "its project is 'a b'"),
    ({"project": "other"}, "it is for 'other', but its study is 'clinic'"),
    ({"fingerprint": "x\x1b[2J"}, "its fingerprint is"),
    ({"study": 5}, "is not an invitation"),
    ({"study": "\ud800"}, "is not an invitation"),
    ({"study": "format = 2"}, "format must be 1"),
    ({"more": 1}, "is not an invitation"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_a_wrong_invitation_gives_one_sentence_and_no_file(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path, site = invitation(tmp_path, **changes), tmp_path / "site"
    result = run("site", "join", path, "--site", site, "--data", clinic_files(tmp_path)["north"])
    assert result.exit_code == 1
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not site.exists()


@pytest.mark.parametrize("content", [b"5", b"[1]", b"null", b"", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_invitation_gives_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    result = run("site", "join", path, "--site", tmp_path / "site")
    assert result.exit_code == 1
    assert result.output.strip() == f"Error: {path} is not an invitation; 'dmtrl study invite' writes one"


def test_the_status_of_a_site_shows_its_privacy_budget(tmp_path: Path) -> None:
    site = tmp_path / "site"
    create_site(site, "north", clinic_files(tmp_path)["north"])
    (site / "flare").mkdir()
    invitation(tmp_path).rename(site / "flare" / "invitation.json")
    words = "privacy budget: epsilon 8 at delta 1e-05; spent: {}; left for one more study: {}"
    assert run("site", "status", "--site", site).output.splitlines()[-1] == words.format("0", "8")
    budget = Budget(site, 8.0, 1e-5)
    budget.charge("hash", "clinic", 8.0, 1e-5, mu_of(8.0, 1e-5))
    assert run("site", "status", "--site", site).output.splitlines()[-1] == words.format("8", "0")
    (site / "private").mkdir()
    (site / "budget.jsonl").unlink()
    result = run("site", "status", "--site", site)
    assert result.exit_code == 1
    assert result.output.startswith("north: not admitted yet\n")
    assert "budget.jsonl is missing, but" in result.output


def test_an_invitation_for_another_site_or_file_is_refused(tmp_path: Path) -> None:
    files, site = clinic_files(tmp_path), tmp_path / "site"
    create_site(site, "south", files["south"])
    result = run("site", "join", invitation(tmp_path), "--site", site)
    assert "the invitation is for the site 'north', but" in result.output
    assert "names the site 'south'" in result.output
    create_site(site, "north", files["north"])
    result = run("site", "join", invitation(tmp_path), "--site", site, "--data", files["south"])
    assert "already names the data file" in result.output
    assert not (site / "flare").exists()


def coordinator(folder: Path, **changes: Any) -> Path:
    content = {"project": "clinic", "host": "localhost", "port": 8102, **changes}
    (folder / "federation.json").write_text(json.dumps(content))
    return folder


def test_a_changed_coordinator_file_gives_one_sentence(tmp_path: Path) -> None:
    assert StudyServer.open(coordinator(tmp_path)).port == 8102
    for changes, words in (
        ({"port": "x"}, "the port must be"),
        ({"host": "a b"}, "the host must be"),
        ({"project": 5}, "the project must"),
        ({"more": 1}, "is not what 'dmtrl study provision' wrote"),
    ):
        with pytest.raises(ValueError, match=words):
            StudyServer.open(coordinator(tmp_path, **changes))
    for text in ("5", "[]", "{", '{"project": "clinic"}'):
        (tmp_path / "federation.json").write_text(text)
        with pytest.raises(ValueError, match="is not what 'dmtrl study provision' wrote"):
            StudyServer.open(tmp_path)


def test_a_wrong_host_makes_no_folder(tmp_path: Path) -> None:
    study = tmp_path / "clinic.toml"
    study.write_text(CLINIC)
    with pytest.raises(ValueError, match="the server: the host must be"):
        provision(study, tmp_path / "coordinator", "a b", 8102)
    assert not (tmp_path / "coordinator").exists()


REQUESTS: list[tuple[Any, str]] = [
    (["north"], "is not a request"),
    (5, "is not a request"),
    ({"name": "north"}, "is not a request"),
    ({"name": "north", "kind": "admin"}, "asks for the role 'admin'"),
    ({"name": "../north", "kind": "site"}, "asks for the name '../north'"),
    ({"name": "north", "kind": "site"}, "the site 'north' was not invited"),
]


@pytest.mark.parametrize(("content", "words"), REQUESTS)
def test_a_wrong_request_gives_one_sentence(tmp_path: Path, content: Any, words: str) -> None:
    request = tmp_path / "request.zip"
    with zipfile.ZipFile(request, "w") as archive:
        archive.writestr("request.json", json.dumps(content))
    with pytest.raises(ValueError, match=words):
        admit(StudyServer.open(coordinator(tmp_path)), request)


def test_a_request_that_is_no_archive_gives_one_sentence(tmp_path: Path) -> None:
    request = tmp_path / "request.zip"
    request.write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="is not a request"):
        admit(StudyServer.open(coordinator(tmp_path)), request)
