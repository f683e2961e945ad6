"""A server and three sites of NVIDIA FLARE on loopback, with mutual TLS: bits, faults, refusals, and what travels."""

import hashlib
import json
import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVIDIA FLARE: pip install "dmtrl[federation]"')

import dmtrl
from dmtrl.cli.main import main
from dmtrl.exceptions import FederationError
from dmtrl.federation.coordinator.results import MODEL, RESULT
from dmtrl.federation.flare import processes
from dmtrl.federation.flare.jobs import write_job
from dmtrl.federation.flare.loopback import Loopback, set_up
from dmtrl.federation.flare.server import folder as coordinators
from dmtrl.federation.flare.server import supervisor
from dmtrl.federation.flare.site import member as members
from dmtrl.federation.simulate import simulate
from dmtrl.federation.site import ledger
from dmtrl.federation.site.site import LEDGER, Site
from dmtrl.federation.study.study_file import read_study
from dmtrl.progress import NoProgress
from dmtrl.protocol.message import MAGIC, Message
from dmtrl.protocol.rounds import Save
from support import federation as support
from support.federation import SITES, STUDY, Relay, StudyRun, all_processes, kill
from support.waiting import CEILING, wait_for

pytestmark = [pytest.mark.federation, pytest.mark.slow]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="session")
def files(folder: Path, shared_data: object) -> dict[str, Path]:
    return support.heart_files(folder, shared_data.folder / "heart")  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def expected(folder: Path, files: dict[str, Path]) -> Path:
    """The folder of the simulation."""
    (folder / "heart.toml").write_text(STUDY)
    simulate(read_study(folder / "heart.toml"), files, folder / "simulated")
    return folder / "simulated"


@pytest.fixture(scope="session")
def federation(folder: Path, files: dict[str, Path], expected: Path, relays: list[Relay]) -> Iterator[Loopback]:
    """Two sites are there from the beginning. The third joins while the others are connected, by the commands that
    people use; all of its traffic is recorded."""
    first = {site: file for site, file in files.items() if site != "va"}
    with set_up(folder, folder / "heart.toml", first) as two:
        two.start()
        coordinator, place = two.coordinator.folder, folder / "sites" / "va"
        invitation = coordinator / "sites" / "va.invitation.json"
        request = place / "flare" / "request" / "va.request.zip"
        shell("study", "invite", "va", "-C", coordinator)
        shell("site", "join", invitation, "--data", files["va"], "--site", place)
        assert "not admitted yet" in shell("site", "status", "--site", place)
        assert "+ nvflare cert approve" in shell("study", "admit", request, "-C", coordinator, "-v")
        shell("site", "join", coordinator / "sites" / "va.signed.zip", "--site", place)
        shell("site", "approve", place / "flare" / "study.toml", "--site", place, "--yes")
        relays.append(Relay(two.coordinator.port))
        support.connect_through(place / "flare", relays[0].port)
        with Loopback(two.coordinator, {**two.members, "va": members.Member.open(place)}) as made:
            assert "va is connected" in shell("site", "start", "--site", place)
            yield made
            assert "va was stopped" in shell("site", "stop", "--site", place)
            assert "The server was stopped" in shell("study", "stop", "-C", coordinator)
    assert support.leftovers(folder) == []


@pytest.fixture(scope="session")
def relays() -> Iterator[list[Relay]]:
    """The relay between the site va and the server, once there is one."""
    opened: list[Relay] = []
    yield opened
    for relay in opened:
        relay.close()


def shell(*words: object) -> str:
    """What a command of dmtrl prints."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="session")
def undisturbed(federation: Loopback) -> tuple[StudyRun, list[ledger.Entry]]:
    """The first run, and what left the site va in it."""
    run = StudyRun(federation)
    run.finish()
    return run, list(ledger.entries(federation.members["va"].folder / LEDGER))


Begin = Callable[..., StudyRun]


@pytest.fixture
def begin(federation: Loopback) -> Iterator[Begin]:
    """Begins runs, which end with the test at the latest."""
    started: list[StudyRun] = []

    def begin(*options: str) -> StudyRun:
        started.append(StudyRun(federation, *options))
        return started[-1]

    yield begin
    for run in started:
        run.kill()


def _assert_same_bits(run: StudyRun, federation: Loopback, expected: Path) -> str:
    """The result, the coordinator's weights and relations, and every site's model are those of the simulation."""
    code, output = run.finish()
    assert code == 0, output
    assert (run.run.folder / RESULT).read_bytes() == (expected / RESULT).read_bytes()
    found, model = dmtrl.load(run.run.folder / MODEL), dmtrl.load(expected / MODEL)
    for name in ("coef_", "intercept_", "task_covariance_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(model, name))
    assert found.reg_lambda_ == model.reg_lambda_
    for site, member in federation.members.items():
        own = Path("results") / MODEL
        assert (member.folder / own).read_bytes() == (expected / "sites" / site / own).read_bytes()
    assert processes.job_processes(federation.coordinator.kit) == []
    return output


def test_the_bits_are_those_of_the_simulation(
    federation: Loopback, undisturbed: tuple[StudyRun, list[ledger.Entry]], expected: Path, tmp_path: Path
) -> None:
    output = _assert_same_bits(undisturbed[0], federation, expected)
    assert "choosing lambda" in output
    assert "fitting all rows" in output
    fetched, folder = tmp_path / "model.dmtrl", federation.coordinator.folder
    shell("study", "fetch", "-C", folder, "-o", fetched)
    assert list(dmtrl.load(fetched).tasks_) == list(SITES)
    status = shell("study", "status", "-C", folder)
    assert all(f"site {site}: connected" in status for site in SITES)
    assert "run 1: finished" in status
    assert "choosing lambda" in shell("study", "log", "-C", folder)
    assert "va: connected" in shell("site", "status", "--site", federation.members["va"].folder)


def test_what_travels(
    undisturbed: tuple[StudyRun, list[ledger.Entry]],
    relays: list[Relay],
    files: dict[str, Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the wire there is only TLS. Inside are the messages of the ledger, which are those of a simulation; they hold
    no row, no label and no dual variable."""
    [relay], (_, entries) = relays, undisturbed
    assert len(relay.bytes) > 50_000
    assert relay.bytes[:2] == b"\x16\x03"  # a TLS handshake
    text = files["va"].read_bytes()
    for secret in (MAGIC, b"improved", text.splitlines()[1], b"trestbps", b"SiteWorker"):
        assert secret not in relay.bytes

    left: list[Message] = []
    alphas: list[np.ndarray] = []
    answer = Site.answer

    def recorded(site: Site, message: Message) -> Message:
        found = answer(site, message)
        if site.name == "va":
            left.append(found)
            if message.name == "round" and len(left) % 10 == 0:
                half: Any = site.participation.half
                saved = half.worker.handle(Save(to=str(folder / "duals")))
                with np.load(folder / "duals" / saved.file) as content:
                    alphas.append(content["state.alpha"])
        return found

    monkeypatch.setattr(Site, "answer", recorded)
    simulate(read_study(folder / "heart.toml"), files, folder / "recorded")
    assert all(entry.numbers == 0 for entry in entries if entry.name == "saved")  # when one is sent depends on the time
    digests = [entry.digest for entry in entries if entry.name != "saved"]
    assert digests == [hashlib.sha256(message.encode()).hexdigest() for message in left if message.name != "saved"]
    sent = b"".join(message.encode() for message in left)
    site = Site(folder / "recorded" / "sites" / "va")
    model = dmtrl.load(site.folder / "results" / MODEL)
    rows = model.preparation_.transform(site.data.table)
    assert len(alphas) > 5
    for alpha in alphas:
        assert _pairs(alpha)
        assert not any(pair in sent for pair in _pairs(alpha))
    assert not any(row.tobytes() in sent for row in rows)
    assert not any(line in sent for line in text.splitlines()[1:])
    assert site.data.y[:4].tobytes() not in sent


def _pairs(values: np.ndarray) -> list[bytes]:
    """The bytes of neighbours that differ and are not zero."""
    return [np.array(pair).tobytes() for pair in pairwise(values) if pair[0] != pair[1] and all(pair)]


def test_keys_stay_where_they_were_made(federation: Loopback, folder: Path) -> None:
    for name, member in federation.members.items():
        key = (member.kit / "startup" / "client.key").read_bytes()
        holders = [path for path in folder.rglob("*") if path.is_file() and key in path.read_bytes()]
        assert holders
        assert all(path.is_relative_to(folder / "sites" / name) for path in holders)


def test_the_settings_of_sites_and_server(federation: Loopback) -> None:
    """One class each, no code with jobs, no shell commands, no logs to the server, no storage in a temporary folder."""
    allowed = {federation.coordinator.kit: "server.controller.StudyController"}
    allowed |= {member.kit: "site.site_worker.SiteWorker" for member in federation.members.values()}
    for kit, name in allowed.items():
        resources = json.loads((kit / "local" / "resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert resources["class_allow_list"] == [f"dmtrl.federation.flare.{name}"]
        assert "/tmp/nvflare" not in json.dumps(resources)
        assert not {"site_log_streamer", "log_receiver"} & {part["id"] for part in resources["components"]}
        rules = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
        assert all(role["byoc"] == role["shell_commands"] == "none" for role in rules.values())
        if name.startswith("site"):
            assert resources["allow_log_streaming"] is False
            assert resources["client"]["maint_msg_timeout"] == 10  # FLARE's 30 s would delay a return after a crash


@pytest.mark.faults
def test_killed_and_suspended_processes(federation: Loopback, begin: Begin, expected: Path) -> None:
    """In one run: a site's job process is killed, a site is suspended for longer than a reply may take, a whole site
    is killed and started again, and the server's job process is killed."""
    run, cleveland = begin(), federation.members["cleveland"]
    assert run.reaches(0.1)
    kill(*processes.job_processes(federation.members["hungarian"].kit))
    assert run.reaches()
    support.suspend(15.0, all_processes(federation.members["va"].kit))
    assert run.reaches()
    kill(*all_processes(cleveland.kit))
    assert cleveland.start()
    assert run.reaches()
    kill(*processes.job_processes(federation.coordinator.kit))
    _assert_same_bits(run, federation, expected)


@pytest.mark.faults
def test_a_site_that_stays_away(federation: Loopback, begin: Begin, files: dict[str, Path], folder: Path) -> None:
    """The study goes on with two sites, as it says, and has the bits of a simulation with two."""
    others = {site: file for site, file in files.items() if site != "hungarian"}
    simulate(read_study(folder / "heart.toml"), others, folder / "two")
    run = begin("--patience", "6")
    assert run.reaches(0.1)
    hungarian = federation.members["hungarian"]
    kill(*all_processes(hungarian.kit))
    try:
        code, output = run.finish()
        assert code == 0, output
        assert "left out, because it did not respond: hungarian" in output
        found, two = run.run.result(), json.loads((folder / "two" / RESULT).read_text())
        assert found.lost == ("hungarian",)
        assert (found.reg_lambda, found.primal, found.dual) == (two["reg_lambda"], two["primal"], two["dual"])
    finally:
        hungarian.start()
        assert hungarian.wait_for_server()


@pytest.mark.faults
def test_a_run_that_is_stopped_and_resumed_and_a_killed_server(
    federation: Loopback, begin: Begin, expected: Path
) -> None:
    run = begin()
    assert run.reaches(0.2)
    wait_for(lambda: any((run.run.folder / "checkpoint").glob("*")), "a checkpoint")
    with pytest.raises(FederationError, match="is in progress"):
        supervisor.run_study_job(federation.coordinator, NoProgress())
    assert supervisor.stop_run(federation.coordinator)
    code, output = run.finish()
    assert code == 1
    assert "was stopped; continue it with 'dmtrl study run --resume'" in output
    resumed = begin("--resume")
    assert resumed.reaches(0.4)
    kill(*all_processes(federation.coordinator.kit))
    output = _assert_same_bits(resumed, federation, expected)
    assert "the server was lost; starting it again" in output


@pytest.mark.faults
def test_a_site_as_a_service(federation: Loopback) -> None:
    """The command that the unit and the compose file name runs the site."""
    va = federation.members["va"]
    text = shell("site", "start", "--service", "--site", va.folder)
    [unit] = re.findall(r"(?m)^ExecStart=(.*)$", text)
    [container] = re.findall(r"(?m)^    command: (.*)$", text)
    assert unit.endswith(f"/{container}")
    va.stop()
    service = subprocess.Popen(unit.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: va.state() == "connected", "the service to connect")
        assert "va was stopped" in shell("site", "stop", "--site", va.folder)
    finally:
        service.kill()
        service.wait()
        va.start()
    assert "ports: " in shell("study", "start", "--service", "-C", federation.coordinator.folder)


def test_a_study_that_was_not_approved(federation: Loopback, begin: Begin) -> None:
    """One byte is changed after the approval. Both ends say so."""
    study_file = federation.coordinator.study_file
    before = study_file.read_bytes()
    try:
        study_file.write_bytes(before + b"\n")
        code, output = begin().finish()
        assert code == 1
        assert "was not approved here" in output
        [site] = re.findall(r"(\w+): the study with the hash", output)
        last = list(ledger.entries(federation.members[site].folder / LEDGER))[-1]
        assert last.name == "refused"
        assert "was not approved here" in last.text
    finally:
        study_file.write_bytes(before)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("another file", "a job passed arguments to the site; its data file is named by its policy alone"),
        ("another class", "a job named a class that is not the one of dmtrl for sites"),
        ("custom code", "BYOC not permitted"),
    ],
)
def test_jobs_that_sites_refuse(federation: Loopback, tmp_path: Path, change: str, sentence: str) -> None:
    """The ledger of the site says why. Code is refused by the server before it reaches a site."""
    write_job(tmp_path, SITES)
    config = tmp_path / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    executor = content["executors"][0]["executor"]
    if change == "another file":
        executor["args"] = {"folder": "/etc"}
    elif change == "another class":
        executor["path"] = "nvflare.app_common.np.np_trainer.NPTrainer"
    else:
        (tmp_path / "app" / "custom").mkdir()
        (tmp_path / "app" / "custom" / "mine.py").write_text("print('hello')\n")
    config.write_text(json.dumps(content))
    place = federation.members["va"].folder / LEDGER
    lines = len(list(ledger.entries(place)))
    with supervisor.session(federation.coordinator) as opened:
        job = opened.submit_job(str(tmp_path))
        wait_for(lambda: str(opened.get_job_status(job)).startswith("FINISHED"), "the job to end")
        status, meta = str(opened.get_job_status(job)), opened.get_job_meta(job)
    assert status != "FINISHED:COMPLETED"
    new = list(ledger.entries(place))[lines:]
    assert all(entry.name == "refused" and entry.numbers == 0 for entry in new)  # nothing else left the site
    if change == "custom code":
        assert sentence in str(meta["job_deploy_detail"])
    else:
        assert [entry.text for entry in new] == [sentence]
        assert sentence in shell("site", "log", "--site", federation.members["va"].folder, "--last", "1")


def _handshake(port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection(("localhost", port), timeout=CEILING) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        if not secure.recv(1):
            raise ConnectionError("the server closed the connection")


def test_who_may_connect(federation: Loopback, folder: Path) -> None:
    startup = federation.members["va"].kit / "startup"
    port = federation.coordinator.port
    trusting = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    trusting.load_cert_chain(startup / "client.crt", startup / "client.key")
    trusting.set_alpn_protocols(["h2"])
    _handshake(port, trusting)  # a certificate of the study's authority

    without = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    without.set_alpn_protocols(["h2"])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _handshake(port, without)

    other = coordinators.provision(folder / "heart.toml", folder / "other", "localhost", port)
    foreign = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    foreign.load_cert_chain(other.admin / "startup" / "client.crt", other.admin / "startup" / "client.key")
    foreign.set_alpn_protocols(["h2"])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _handshake(port, foreign)

    with socket.create_connection(("localhost", port), timeout=CEILING) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert plain.recv(100)[:1] != b"\0"  # no HTTP/2 settings in clear text: an alert of TLS, or nothing


def test_a_signature_of_another_authority(federation: Loopback, folder: Path, tmp_path: Path) -> None:
    other = coordinators.StudyServer.open(folder / "other")
    request = members.ask(tmp_path / "new", coordinators.invite(federation.coordinator, "new"))
    coordinators.invite(other, "new")
    with pytest.raises(FederationError, match=r"package.*failed"):
        members.complete(tmp_path / "new", coordinators.admit(other, request))
    (other.folder / "sites" / "new.invitation.json").unlink()
    with pytest.raises(ValueError, match="was not invited"):
        coordinators.admit(other, request)
