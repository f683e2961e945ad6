"""Collects what a conformance check finds, for one error message."""

from collections import Counter


class Violations:
    """One entry for each kind of violation: where it occurs first, what to do, and how often it occurs."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str]] = {}
        self._count: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count.total()

    def add(self, what: str, advice: str, where: str = "") -> None:
        self._count[what] += 1
        self._first.setdefault(what, (where, advice))

    def message(self, head: str) -> str:
        lines = [head]
        for what, (where, advice) in self._first.items():
            more = f" (and at {self._count[what] - 1} more points)" if self._count[what] > 1 else ""
            lines.append(f"- {what}{where}{more}: {advice}.")
        return "\n".join(lines)
