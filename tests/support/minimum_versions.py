"""Print the minimum versions stated in pyproject.toml as constraints for pip (`make test-minimum`)."""

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = (ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml")
REQUIREMENT = re.compile(r"([\w.-]+)>=([\d.]+)")
CAPPED = re.compile(r"(nvflare)>=([\d.]+),<[\d.]+")  # its private parts are used, which a minor release may change


def minimum_versions(pyproject: Path) -> Iterator[str]:
    """Yield `name==version` for each package that a project, its extras or its dependency groups depend on."""
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = content["project"]
    extras, groups = project.get("optional-dependencies", {}), content.get("dependency-groups", {})
    for requirement in chain(project["dependencies"], *extras.values(), *groups.values()):
        if isinstance(requirement, dict) or requirement.startswith("dmtrl["):
            continue  # another group, or dmtrl itself
        found = REQUIREMENT.fullmatch(requirement) or CAPPED.fullmatch(requirement)
        if not found:
            raise ValueError(f"{pyproject}: write {requirement!r} as 'name>=version'")
        yield "{}=={}".format(*found.groups())


if __name__ == "__main__":
    print(*sorted({version for project in PROJECTS for version in minimum_versions(project)}), sep="\n")
