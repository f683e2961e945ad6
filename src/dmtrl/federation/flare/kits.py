"""Keys, certificates and start-up kits.

Every participant makes its own key where it runs, and sends a request that the coordinator's authority signs. A site
can therefore join at any time, and no key ever travels. The commands of `nvflare` do the cryptography.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmtrl.exceptions import FederationError
from dmtrl.federation.flare.processes import Echo, quiet

ADMIN = "coordinator@dmtrl.org"  # FLARE wants an e-mail address; nothing is sent there
_HEARTBEAT_TIMEOUT = 60  # seconds after which the server shows a silent site as not connected
_MESSAGE_TIMEOUT = 10.0  # seconds after which a site sends its heartbeat again, to a server that was restarted
_PREFIX = "dmtrl.federation.flare."


def nvflare(*arguments: str | Path, echo: Echo = quiet) -> None:
    """Run a command of nvflare; `echo` receives it first."""
    words = [str(argument) for argument in arguments]
    echo("nvflare " + " ".join(words))
    done = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise FederationError(f"'nvflare {words[0]} {words[1]}' failed: {' '.join(said[-3:])}")


def make_authority(folder: Path, project: str, host: str, port: int, echo: Echo = quiet) -> str:
    """Create the authority of a study in `folder`; returns its fingerprint."""
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": project, "scheme": "grpc", "connection_security": "mtls", "server": server}
    _write(folder / "profile.yml", profile)
    nvflare("cert", "init", "--profile", folder / "profile.yml", "-o", folder / "authority", echo=echo)
    return fingerprint(folder)


def fingerprint(folder: Path) -> str:
    """The fingerprint of the authority in the coordinator's folder."""
    return str(json.loads((folder / "authority" / "ca.json").read_text())["rootCA_fingerprint"])


def make_request(folder: Path, project: str, participant: Mapping[str, Any], echo: Echo = quiet) -> Path:
    """Make a key in `folder` and return the request for a certificate, which holds no secret."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "participant.yml", {"name": project, "participants": [dict(participant)]})
    nvflare("cert", "request", "-p", folder / "participant.yml", "--out", folder, "--force", echo=echo)
    return folder / f"{participant['name']}.request.zip"


def sign(folder: Path, request: Path, signed: Path, echo: Echo = quiet) -> None:
    """Sign a request with the authority in the coordinator's folder."""
    options = "-c", folder / "authority", "--profile", folder / "profile.yml", "--out", signed, "--force"
    nvflare("cert", "approve", request, *options, echo=echo)


def build_kit(requested: Path, signed: Path, expected: str, kit: Path, echo: Echo = quiet) -> None:
    """Build the kit from a signed request and the key in `requested`. `expected`: fingerprint of the authority."""
    work = requested / "package"
    shutil.rmtree(work, ignore_errors=True)
    nvflare("package", signed, "--request-dir", requested, "--fingerprint", expected, "-w", work, echo=echo)
    [built] = work.glob("*/prod_00/*/startup")
    for part in ("startup", "local"):
        shutil.rmtree(kit / part, ignore_errors=True)
        shutil.copytree(built.parent / part, kit / part)
    shutil.rmtree(work)


def secure_site(kit: Path) -> None:
    """Settings of a site: only `SiteWorker` can be run by a job, no code comes with a job, no log leaves."""
    _authorise(kit, {"submit_job": "any", "manage_job": "n:submitter"})
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    _allow(resources, "site.site_worker.SiteWorker")
    resources["allow_log_streaming"] = False
    resources["client"]["maint_msg_timeout"] = _MESSAGE_TIMEOUT
    _replace_components(
        resources, "site_log_streamer", launcher="site.launcher.SiteLauncher", rejoin="site.launcher.Rejoin"
    )
    _write(kit / "local" / "resources.json", resources)


def secure_server(kit: Path) -> None:
    """Settings of the server: only `StudyController` can be run by a job; its storage stays in the kit's folder."""
    _authorise(kit, {"submit_job": "any", "manage_job": "n:submitter", "view": "any"})
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    _allow(resources, "server.controller.StudyController")
    resources["servers"][0]["heart_beat_timeout"] = _HEARTBEAT_TIMEOUT
    storage = (kit / "storage").resolve()
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    _replace_components(resources, "log_receiver", launcher="server.launcher.ServerLauncher")
    _write(kit / "local" / "resources.json", resources)


def _allow(resources: dict[str, Any], name: str) -> None:
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [_PREFIX + name]


def _authorise(kit: Path, lead: Mapping[str, str]) -> None:
    """What the coordinator, who has FLARE's role lead, may do. Nobody may bring code or run shell commands."""
    rights = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc")
    nothing = {right: "none" for right in (*rights, "server-predeployed-flwr")}
    permissions = {role: nothing for role in ("project_admin", "org_admin", "member")}
    rules = {"format_version": "1.0", "permissions": {**permissions, "lead": {**nothing, **lead}}}
    _write(kit / "local" / "authorization.json", rules)


def _replace_components(resources: dict[str, Any], removed: str, **added: str) -> None:
    """Remove FLARE's launcher and the component `removed`, and add ours."""
    kept = [part for part in resources["components"] if part["id"] not in ("process_launcher", removed)]
    ours = [{"id": name, "path": _PREFIX + path, "args": {}} for name, path in added.items()]
    resources["components"] = kept + ours


def _write(path: Path, content: Any) -> None:
    """JSON, which is also YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
