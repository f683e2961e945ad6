"""The job of a study: what the coordinator submits, and what a site accepts.

A job carries no code, no file name and no setting of the study: two class names and the names of the sites. A site
compares the part for sites with what it would write itself, before it starts a process.
"""

import json
from collections.abc import Sequence
from pathlib import Path

_PREFIX = "dmtrl.federation.flare."
_SERVER, _SITE, _CUSTOM = "config_fed_server.json", "config_fed_client.json", "custom"
_EXECUTOR = {"path": _PREFIX + "site.site_worker.SiteWorker", "args": {}}
_FOR_SITES = {"format_version": 2, "executors": [{"tasks": ["dmtrl"], "executor": _EXECUTOR}], "components": []}
_FOR_SERVER = {
    "format_version": 2,
    "workflows": [{"id": "dmtrl", "path": _PREFIX + "server.controller.StudyController", "args": {}}],
    "components": [],
}


def write_job(folder: Path, sites: Sequence[str]) -> None:
    """Write the job of a study with these sites."""
    meta = {
        "name": "dmtrl",
        "resource_spec": {},
        "deploy_map": {"app": ["server", *sites]},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
    }
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    for path, content in (
        (folder / "meta.json", meta),
        (config / _SERVER, _FOR_SERVER),
        (config / _SITE, _FOR_SITES),
    ):
        path.write_text(json.dumps(content, indent=2) + "\n")


def fault_in_job(app: Path) -> str | None:
    """Why a site does not accept a job, from the folder that it was deployed to; None: it does."""
    if (app / _CUSTOM).exists():
        return "a job brought code of its own, which this site never runs"
    try:
        content = json.loads((app / "config" / _SITE).read_bytes())
        executors = [entry["executor"] for entry in content["executors"]]
        classes = [executor["path"] for executor in executors]
        arguments = [name for executor in executors for name in executor.get("args", {})]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "the configuration of a job could not be read"
    if classes != [_EXECUTOR["path"]]:
        return "a job named a class that is not the one of dmtrl for sites"
    if arguments:
        return "a job passed arguments to the site; its data file is named by its policy alone"
    return None if content == _FOR_SITES else "a job had other components than a study has"
