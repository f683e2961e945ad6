"""`dmtrl site` over a network as library functions: join a study, connect to its server, and see how it stands."""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dmtrl.exceptions import InputError, Setting
from dmtrl.federation.flare import processes, services
from dmtrl.federation.flare.invitation import Invitation
from dmtrl.federation.flare.processes import Echo, quiet
from dmtrl.federation.flare.site import member as flare
from dmtrl.federation.flare.site.member import Member
from dmtrl.federation.site import policy
from dmtrl.federation.site.approval import Approval, create_site, read_approval
from dmtrl.federation.site.budget import Budget


@dataclass(frozen=True)
class JoinRequest:
    """The first step of joining: the request to send to the coordinator. policy: what decides what leaves the site."""

    request: Path
    fingerprint: str
    policy: Path


@dataclass(frozen=True)
class Joined:
    """The second step: the site is a member of the study."""

    site: str
    project: str
    study_file: Path
    firewall_rule: str


@dataclass(frozen=True)
class SiteStart:
    """started: False if the site was running already. connected: whether it has reached the server."""

    site: str
    address: str
    started: bool
    connected: bool
    firewall_rule: str


@dataclass(frozen=True)
class SiteStatus:
    """state: of the connection. approval: None if no study was approved. in_run: whether it takes part in a run."""

    site: str
    state: str
    address: str
    approval: Approval | None
    in_run: bool
    _budget: Budget

    def budget(self) -> str:
        """What is left of the privacy budget. ValueError if its record was damaged: the rest still holds."""
        return self._budget.describe()


def join(folder: Path, file: Path, data: Path | None = None, echo: Echo = quiet) -> JoinRequest | Joined:
    """Take the next step of joining: file is an invitation, or what the coordinator sent back.

    data: the site's data file, for a folder that is not that of a site yet.
    """
    if flare.is_signed(file):
        done = flare.complete(folder, file, echo)
        invitation = done.invitation
        return Joined(invitation.site, invitation.project, done.study_file, done.firewall_rule())
    invitation = Invitation.read(file)
    flare.require_new(folder)
    path = folder / policy.FILE
    if path.exists():
        _check_policy(path, policy.read_policy(folder), invitation.site, data)
    elif data is None:
        raise InputError("the first step of joining needs the site's data file; pass ", Setting("data"))
    else:
        create_site(folder, invitation.site, data)
    return JoinRequest(flare.ask(folder, file, echo), invitation.fingerprint, path)


def _check_policy(path: Path, found: policy.Policy, invited: str, data: Path | None) -> None:
    """The folder is that of a site already: its policy must be for the invited site and for the same data file."""
    if found.site != invited:
        raise ValueError(f"the invitation is for the site {invited!r}, but {path} names the site {found.site!r}")
    if data is not None and data.resolve() != (path.parent / found.data).resolve():
        raise InputError(f"{path} already names the data file {found.data}; change it there, without ", Setting("data"))


def service_files(folder: Path) -> tuple[str, str]:
    """A systemd unit and a docker compose file of the site."""
    invitation = Member.open(folder).invitation
    data = (folder / policy.read_policy(folder).data).resolve()
    return (
        services.systemd_unit("site", invitation.site, folder),
        services.compose_file("site", invitation.site, folder, invitation.port, data),
    )


def has_approved(folder: Path) -> bool:
    """Whether a study was approved at the site. Without one, the site refuses to answer."""
    Member.open(folder)
    return read_approval(folder) is not None


def serve(folder: Path, echo: Echo = quiet) -> NoReturn:
    """Become the process of the site."""
    Member.open(folder).run(echo)


def start(folder: Path, echo: Echo = quiet) -> SiteStart:
    """Start the site in the background, and wait a while for its connection."""
    site = Member.open(folder)
    started = site.start(echo)
    connected = started and site.wait_for_server()
    address = f"{site.invitation.host}:{site.invitation.port}"
    return SiteStart(site.invitation.site, address, started, connected, site.firewall_rule())


def status(folder: Path) -> SiteStatus:
    """How the site stands."""
    site, rules = Member.open(folder), policy.read_policy(folder)
    return SiteStatus(
        site.invitation.site,
        site.state() if site.admitted else "not admitted yet",
        f"{site.invitation.host}:{site.invitation.port}",
        read_approval(folder),
        bool(processes.job_processes(site.kit)),
        Budget(folder, rules.epsilon, rules.delta),
    )


def stop(folder: Path) -> tuple[str, bool]:
    """Stop the processes of the site. Returns its name and whether it was running."""
    site = Member.open(folder)
    return site.invitation.site, site.stop()
