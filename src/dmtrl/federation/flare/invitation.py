"""The invitation of a site: what it needs to ask for admission, written by the coordinator and read at the site."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dmtrl.federation.study.study_file import SITE_NAME, parse_study

_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,252}")
_FINGERPRINT = re.compile(r"[A-Za-z0-9:+/=]{16,200}")


@dataclass(frozen=True)
class Invitation:
    """What a site needs to ask for admission. It holds no secret; `fingerprint` is that of the study's authority."""

    site: str
    project: str
    host: str
    port: int
    fingerprint: str
    study: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Invitation":
        """Read an invitation, which somebody else wrote: every field is checked."""
        try:
            invitation = cls(**json.loads(path.read_text(encoding="utf-8")))
            source = invitation.study.encode("utf-8")
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path} is not an invitation; 'dmtrl study invite' writes one") from None
        checks = (("site", SITE_NAME), ("project", SITE_NAME), ("fingerprint", _FINGERPRINT))
        for key, pattern in checks:
            value = getattr(invitation, key)
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise ValueError(f"{path} is not a valid invitation: its {key} is {value!r}")
        check_address(path, invitation.host, invitation.port)
        study = parse_study(source, f"the study in {path}")
        if study.name != invitation.project:
            raise ValueError(
                f"{path} is not a valid invitation: it is for {invitation.project!r}, but its study is {study.name!r}"
            )
        return invitation


def check_address(where: Path | str, host: Any, port: Any) -> None:
    """ValueError if this is not the address of a server. `where`: what holds the address."""
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        raise ValueError(f"{where}: the host must be a name or an address such as server.example.org, got {host!r}")
    if type(port) is not int or not 1 <= port <= 65535:
        raise ValueError(f"{where}: the port must be an integer from 1 to 65535, got {port!r}")
