"""The connection of a site: joining a study, starting, stopping. Its data and its policy: `federation/site/`."""

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmtrl.engines.warm_up import warm_up
from dmtrl.exceptions import FederationError
from dmtrl.federation.flare import kits, processes
from dmtrl.federation.flare.invitation import Invitation
from dmtrl.federation.flare.processes import Echo, quiet
from dmtrl.federation.study.study_file import read_study

_KIT = "flare"
_CONNECT_TIMEOUT = 30.0  # seconds that `start` waits for the server


@dataclass(frozen=True)
class Member(processes.KitProcess):
    """A site that was invited. `folder`: the site's folder; the kit is in `flare/` of it."""

    folder: Path
    invitation: Invitation

    @classmethod
    def open(cls, folder: Path) -> "Member":
        path = folder / _KIT / "invitation.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} has not joined a study: it has no {_KIT}/invitation.json; use 'dmtrl site join'"
            )
        return cls(folder, Invitation.read(path))

    @property
    def kit(self) -> Path:
        return self.folder / _KIT

    @property
    def study_file(self) -> Path:
        """The study as it came with the invitation. What was approved is kept beside it, see approval.py."""
        return self.kit / "study.toml"

    @property
    def admitted(self) -> bool:
        return (self.kit / "startup").exists()

    def firewall_rule(self) -> str:
        return f"allow outgoing TCP to {self.invitation.host} port {self.invitation.port}; no incoming port is needed"

    def prepare(self) -> list[str]:
        """Compile the kernels, so that the first round does not wait for them, apply the settings of the kit, and
        return the command that runs the site."""
        if not self.admitted:
            raise FederationError(
                f"{self.folder} was not admitted yet: send its request to the coordinator and join with the answer"
            )
        warm_up([], read_study(self.study_file).loss)
        kits.secure_site(self.kit)
        return processes.command_of(self.kit, "client", self.invitation.site)

    def wait_for_server(self) -> bool:
        """Whether the site is connected to the server within half a minute."""
        processes.wait_until(lambda: self.state() != "trying to connect", _CONNECT_TIMEOUT)
        return self.state() == "connected"

    def state(self) -> str:
        """stopped, connected, or trying to connect."""
        process = processes.running(self.kit)
        if process is None:
            return "stopped"
        return "connected" if processes.connected(process, self.invitation.port) else "trying to connect"


def require_new(folder: Path) -> None:
    """FederationError if the site of this folder has joined a study already."""
    if (folder / _KIT / "startup").exists():
        raise FederationError(f"{folder} has already joined the study {Member.open(folder).invitation.project!r}")


def ask(folder: Path, invitation_file: Path, echo: Echo = quiet) -> Path:
    """Make the site's key and return the request to send to the coordinator. The key stays in the site's folder."""
    invitation = Invitation.read(invitation_file)
    kit = folder / _KIT
    require_new(folder)
    kit.mkdir(parents=True, exist_ok=True)
    if invitation_file.resolve() != (kit / "invitation.json").resolve():
        shutil.copyfile(invitation_file, kit / "invitation.json")
    (kit / "study.toml").write_bytes(invitation.study.encode("utf-8"))
    name = invitation.site
    participant: dict[str, Any] = {"name": name, "org": processes.organisation(name), "type": "client"}
    return kits.make_request(kit / "request", invitation.project, participant, echo)


def complete(folder: Path, signed: Path, echo: Echo = quiet) -> Member:
    """Build the kit of a site that was admitted. A certificate of another authority is refused."""
    member = Member.open(folder)
    # nvflare wants this ending
    copy = member.kit / "request" / f"{member.invitation.site}.signed.zip"
    shutil.copyfile(signed, copy)
    kits.build_kit(member.kit / "request", copy, member.invitation.fingerprint, member.kit, echo)
    kits.secure_site(member.kit)
    return member


def is_signed(path: Path) -> bool:
    """Whether a file may be the coordinator's answer to a request; otherwise it must be an invitation."""
    return zipfile.is_zipfile(path)
