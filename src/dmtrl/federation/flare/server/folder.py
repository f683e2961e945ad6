"""The coordinator's folder: the study, the authority, the kits of the server and of the coordinator, and the runs."""

import json
import shutil
import socket
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmtrl.exceptions import FederationError
from dmtrl.federation.flare import kits, processes
from dmtrl.federation.flare.invitation import Invitation, check_address
from dmtrl.federation.flare.kits import ADMIN
from dmtrl.federation.flare.processes import Echo, quiet
from dmtrl.federation.study.study_file import SITE_NAME, check_site_name, read_study

_FILE = "federation.json"
_START_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True)
class StudyServer(processes.KitProcess):
    """The coordinator's folder, the name of its study, and where its server listens."""

    folder: Path
    project: str
    host: str
    port: int

    @classmethod
    def open(cls, folder: Path) -> "StudyServer":
        path = folder / _FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} is not a coordinator's folder: it has no {_FILE}; 'dmtrl study provision' makes one"
            )
        try:
            found = cls(folder, **json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError):
            raise ValueError(f"{path} is not what 'dmtrl study provision' wrote: the file was changed") from None
        project: Any = found.project
        if not isinstance(project, str) or not SITE_NAME.fullmatch(project):
            raise ValueError(f"{path}: the project must be the name of a study, got {project!r}")
        check_address(path, found.host, found.port)
        return found

    @property
    def study_file(self) -> Path:
        return self.folder / "study.toml"

    @property
    def kit(self) -> Path:
        """The kit of the server; that of the coordinator's own commands is `admin`."""
        return self.folder / "server"

    @property
    def admin(self) -> Path:
        """The kit with which the coordinator's commands talk to the server."""
        return self.folder / "admin"

    @property
    def admitted(self) -> list[str]:
        """The sites that were admitted."""
        return sorted(path.name.removesuffix(".signed.zip") for path in (self.folder / "sites").glob("*.signed.zip"))

    def firewall_rule(self) -> str:
        return f"allow incoming TCP to port {self.port} of {self.host} from the sites (gRPC over mutual TLS)"

    def prepare(self) -> list[str]:
        kits.secure_server(self.kit)
        return processes.command_of(self.kit, "server", self.host)

    def start(self, echo: Echo = quiet) -> bool:
        """Start the server in the background, and wait until it listens; False if it is running already."""
        if not super().start(echo):
            return False
        if not processes.wait_until(lambda: self.listens() or processes.running(self.kit) is None, _START_TIMEOUT):
            raise FederationError(f"the server did not start within {_START_TIMEOUT:g} s; see {self.kit}/process.log")
        if processes.running(self.kit) is None:
            raise FederationError(f"the server ended when it was started; see {self.kit}/process.log")
        return True

    def listens(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


def provision(study_file: Path, folder: Path, host: str, port: int, echo: Echo = quiet) -> StudyServer:
    """Make the coordinator's folder: authority, server and coordinator's kit. The study file is copied into it."""
    study = read_study(study_file)
    check_address("the server", host, port)
    if (folder / _FILE).exists():
        raise FileExistsError(f"{folder} is already a coordinator's folder: it has {_FILE}; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(study_file, folder / "study.toml")
    expected = kits.make_authority(folder, study.name, host, port, echo)
    ports = {"fed_learn_port": port, "admin_port": port}
    coordinator = StudyServer(folder, study.name, host, port)
    server: dict[str, Any] = {"name": host, "org": processes.organisation(host), "type": "server", **ports}
    admin: dict[str, Any] = {"name": ADMIN, "org": "coordinator", "type": "admin", "role": "lead"}
    for participant, kit in ((server, coordinator.kit), (admin, coordinator.admin)):
        place = kit / "request"
        request = kits.make_request(place, study.name, participant, echo)
        signed = place / f"{participant['name']}.signed.zip"
        kits.sign(folder, request, signed, echo)
        kits.build_kit(place, signed, expected, kit, echo)
    (folder / _FILE).write_text(json.dumps({"project": study.name, "host": host, "port": port}, indent=2) + "\n")
    return coordinator


def invite(coordinator: StudyServer, site: str) -> Path:
    """Write the invitation of a site."""
    check_site_name(site)
    study = read_study(coordinator.study_file).source.decode("utf-8")  # the hash is that of the bytes
    path = coordinator.folder / "sites" / f"{site}.invitation.json"
    path.parent.mkdir(exist_ok=True)
    expected = kits.fingerprint(coordinator.folder)
    Invitation(site, coordinator.project, coordinator.host, coordinator.port, expected, study).write(path)
    return path


def admit(coordinator: StudyServer, request: Path, echo: Echo = quiet) -> Path:
    """Sign the request of an invited site; returns the file to send back."""
    try:
        with zipfile.ZipFile(request) as archive:
            asked = json.loads(archive.read("request.json"))
            site, kind = str(asked["name"]), str(asked["kind"])
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, RuntimeError):
        raise ValueError(f"{request} is not a request; 'dmtrl site join' writes one") from None
    if kind != "site":
        raise ValueError(f"{request} asks for the role {kind!r}; only sites can be admitted")
    invitation = coordinator.folder / "sites" / f"{site}.invitation.json"
    if not SITE_NAME.fullmatch(site):
        raise ValueError(f"{request} asks for the name {site!r}; a site has letters, digits, - and _ only")
    if not invitation.exists():
        raise ValueError(f"the site {site!r} was not invited; 'dmtrl study invite {site}' does that")
    signed = coordinator.folder / "sites" / f"{site}.signed.zip"
    kits.sign(coordinator.folder, request, signed, echo)
    return signed
