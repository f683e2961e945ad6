"""Print the minimum versions stated in pyproject.toml as constraints for pip (`make test-minimum`)."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
REQUIREMENT = re.compile(r"([\w.-]+)>=([\d.]+)")
CAPPED = re.compile(r"(nvflare)>=([\d.]+),<[\d.]+")  # its private parts are used, which a minor release may change


def minimum_versions(pyproject: Path = PYPROJECT) -> Iterator[str]:
    """Yield `name==version` for each package that the library, its extras or its tests depend on."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    for requirement in sum(project["optional-dependencies"].values(), project["dependencies"]):
        if requirement.startswith(f"{project['name']}["):
            continue  # an extra that consists of other extras
        found = REQUIREMENT.fullmatch(requirement) or CAPPED.fullmatch(requirement)
        if not found:
            raise ValueError(f"{pyproject}: write {requirement!r} as 'name>=version'")
        yield "{}=={}".format(*found.groups())


if __name__ == "__main__":
    print(*sorted(set(minimum_versions())), sep="\n")
