"""Files for people who run the server or a site as a service: a systemd unit and a docker compose file."""

import sys
from importlib.metadata import version
from pathlib import Path


def systemd_unit(kind: str, name: str, folder: Path) -> str:
    """A unit that starts again after a crash. `kind`: study (the server) or site."""
    what = "server of the study" if kind == "study" else "site"
    return f"""# /etc/systemd/system/dmtrl-{kind}-{name}.service
[Unit]
Description=dmtrl {what} {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={Path(sys.executable).parent / "dmtrl"} {_start(kind, folder)}
WorkingDirectory={folder.resolve()}
Restart=always
RestartSec=2
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""


def compose_file(kind: str, name: str, folder: Path, port: int, data: Path | None = None) -> str:
    """A docker compose file. The folder is mounted at the same path, so that commands work inside and outside."""
    path = folder.resolve()
    volumes = [f"      - {path}:{path}"] + ([f"      - {data}:{data}:ro"] if data is not None else [])
    ports = [f'    ports: ["{port}:{port}"]'] if kind == "study" else []
    lines = [
        f"# compose.yaml, beside a clone of dmtrl {version('dmtrl')} in the folder dmtrl",
        "services:",
        f"  {name}:",
        "    build:",
        "      context: dmtrl",
        "      dockerfile_inline: |",
        "        FROM python:3.11-slim",
        "        COPY pyproject.toml README.md LICENSE /source/",
        "        COPY src /source/src",
        '        RUN pip install "/source[federation]"',
        f"    command: dmtrl {_start(kind, folder)}",
        "    restart: always",
        "    init: true",
        *ports,
        "    volumes:",
        *volumes,
    ]
    return "\n".join(lines) + "\n"


def _start(kind: str, folder: Path) -> str:
    return f"{kind} start --foreground {'-C' if kind == 'study' else '--site'} {folder.resolve()}"
