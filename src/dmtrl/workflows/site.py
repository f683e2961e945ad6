"""`dmtrl site` as library functions: check a file, approve a study, read the ledger."""

from dataclasses import dataclass
from pathlib import Path

from dmtrl.exceptions import InputError, Setting
from dmtrl.federation.site.approval import Approval, approval_text, approve, create_site, withdraw
from dmtrl.federation.site.data_check import SiteCheck, check_file
from dmtrl.federation.site.ledger import Entry, entries, verify
from dmtrl.federation.site.policy import FILE, Policy, read_policy
from dmtrl.federation.site.site import LEDGER
from dmtrl.federation.study.study_file import Study, check_site_name, read_study


def check_site_file(file: str | Path, study: str | Path) -> SiteCheck:
    """Compare a file with a study. Nothing leaves the site."""
    return check_file(read_study(study), Path(file))


@dataclass(frozen=True)
class Proposal:
    """A study that a site may approve: the text to read first, and what is wrong with the site's file."""

    folder: Path
    study: Study
    policy: Policy
    check: SiteCheck
    text: str

    def approve(self) -> None:
        """Store the approval of this study; a folder without a site becomes one."""
        if self.check.data is None:
            raise ValueError(f"the file of this site does not fit the study: {self.check.errors[0].text}")
        if not (self.folder / FILE).exists():
            create_site(self.folder, self.policy.site, self.policy.data)
        approve(self.folder, self.study, self.text)


def propose(study: str | Path, folder: str | Path, data: str | Path | None = None, name: str | None = None) -> Proposal:
    """Read a study for the approval of a site. For a folder without a site, pass its data file and name.

    Nothing is written before the approval.
    """
    place, wanted = Path(folder), read_study(study)
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(f"{place} is a file; a site needs a folder, which may not exist yet")
    if not (place / FILE).exists():
        if data is None or name is None:
            raise InputError(
                f"{place} is not the folder of a site; to make it one, pass ", Setting("data"), " and ", Setting("name")
            )
        check_site_name(name)
        policy = Policy(name, str(Path(data).resolve()))
        if not Path(data).exists():
            raise FileNotFoundError(f"there is no file {data}; check its name and folder")
    elif data is not None or name is not None:
        raise InputError(
            f"{place / FILE} already names the site and its data file; change them there, without ",
            Setting("data"),
            " and ",
            Setting("name"),
        )
    else:
        policy = read_policy(place)
        if not (place / policy.data).exists():
            raise FileNotFoundError(f"{place / policy.data}, the data file that {place / FILE} names, does not exist")
    check = check_file(wanted, place / policy.data, policy.minimum_rows)
    return Proposal(place, wanted, policy, check, approval_text(wanted, policy, check, place))


def withdraw_approval(folder: str | Path) -> Approval:
    """Withdraw the approval that a site gave. ValueError if there is none."""
    read_policy(Path(folder))
    return withdraw(folder)


def ledger_entries(folder: str | Path) -> list[Entry]:
    """The ledger of a site."""
    read_policy(Path(folder))
    return list(entries(Path(folder) / LEDGER))


def verify_ledger(folder: str | Path) -> tuple[int, str]:
    """Check the hash chain of a site's ledger. Returns its number of lines and the hash of the last one, if any.

    Raises ValueError if a line was changed or removed, or if the ledger is missing.
    """
    place = Path(folder)
    read_policy(place)
    path = place / LEDGER
    lines = verify(path)
    if lines == 0:
        traces = [name for name in ("run", "results") if (place / name).exists()]
        if traces:
            raise ValueError(f"{path} is missing or empty, but {place / traces[0]} shows that the site gave answers")
        return 0, ""
    return lines, list(entries(path))[lines - 1].hash
