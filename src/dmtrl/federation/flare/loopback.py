"""A whole federation on this machine: a server and sites as processes on loopback, with real certificates.

For trials, benchmarks and tests. Between organisations every party takes its own steps.
"""

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dmtrl.exceptions import FederationError
from dmtrl.federation.flare.processes import Echo, quiet
from dmtrl.federation.flare.server import folder as coordinators
from dmtrl.federation.flare.server.folder import StudyServer
from dmtrl.federation.flare.site import member as members
from dmtrl.federation.flare.site.member import Member
from dmtrl.federation.site.approval import approval_text, approve, create_site
from dmtrl.federation.site.data_check import check_file
from dmtrl.federation.study.study_file import read_study


@dataclass(frozen=True)
class Loopback:
    """The coordinator and the sites. A context that stops all processes at its end."""

    coordinator: StudyServer
    members: Mapping[str, Member]

    def start(self, echo: Echo = quiet) -> None:
        """Start the server and the sites, and wait until all are connected."""
        self.coordinator.start(echo)
        for member in self.members.values():
            member.start(echo)
        for name, member in self.members.items():
            if not member.wait_for_server():
                raise FederationError(f"the site {name!r} did not connect; see {member.kit}/process.log")

    def stop(self) -> None:
        for member in self.members.values():
            member.stop()
        self.coordinator.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()


def set_up(folder: Path, study_file: Path, files: Mapping[str, Path]) -> Loopback:
    """Make the folders `coordinator` and `sites/NAME`; every site joins and approves the study.

    files: the data file of each site, by name."""
    made = coordinators.provision(study_file, folder / "coordinator", "localhost", free_port())

    def join(name: str) -> Member:
        place = folder / "sites" / name
        policy = create_site(place, name, files[name])
        request = members.ask(place, coordinators.invite(made, name))
        member = members.complete(place, coordinators.admit(made, request))
        study = read_study(member.study_file)
        check = check_file(study, Path(policy.data), policy.minimum_rows)
        approve(place, study, approval_text(study, policy, check, place))
        return member

    with ThreadPoolExecutor(2) as pool:
        return Loopback(made, dict(zip(files, pool.map(join, files), strict=True)))


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
