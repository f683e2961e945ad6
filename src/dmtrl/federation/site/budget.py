"""The privacy budget of a site, and its private releases, on its disk. No job and no message can reset them.

`budget.jsonl` has a line for every private study that released something: the whole study is charged before its first
release. `private/HASH/` holds every release of a study with its noise, written before it leaves. A release that exists
is never made again, so a run that is resumed, repeated or started with other sites costs nothing more.
"""

import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from dmtrl import storage
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.noise.accounting import epsilon_of, mu_of, total_mu
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.study import Released

_BUDGET, _RELEASES = "budget.jsonl", "private"


@dataclass(frozen=True)
class Charge:
    """A study that was charged: its hash and name, the guarantee that its releases got, and what they cost."""

    time: str
    study: str
    name: str
    epsilon: float
    delta: float
    mu: float


class Budget:
    """What a site may spend on all private studies together. Use it while holding the lock of the ledger."""

    def __init__(self, folder: Path, epsilon: float, delta: float):
        self._folder, self._epsilon, self._delta = folder, epsilon, delta

    def charges(self) -> list[Charge]:
        path = self._folder / _BUDGET
        if not path.exists():
            if (self._folder / _RELEASES).exists():
                raise ValueError(
                    f"{path} is missing, but {self._folder / _RELEASES} shows that something was released; restore it "
                    "from a backup"
                )
            return []
        content = path.read_bytes()
        try:
            found = [Charge(**json.loads(line)) for line in content.splitlines()]
            # the file is replaced as a whole, so a last line without an end is damage, not the trace of a crash
            if not content.endswith(b"\n") or not all(0 < charge.mu < math.inf for charge in found):
                raise ValueError
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged; restore it from a backup") from error
        return found

    @property
    def spent(self) -> float:
        """The epsilon that all charges together amount to, at the delta of the budget."""
        return epsilon_of(total_mu(charge.mu for charge in self.charges()), self._delta)

    def left(self, mu: float = 0.0) -> float:
        """The largest epsilon, at the delta of the budget, that one more study may have, after one that costs mu.

        The squares of mu add up, not epsilon: spent and left together are more than the budget.
        """
        spent = total_mu([mu, *(charge.mu for charge in self.charges())])
        return epsilon_of(math.sqrt(max(mu_of(self._epsilon, self._delta) ** 2 - spent**2, 0.0)), self._delta)

    def describe(self) -> str:
        """Spent and left, in words."""
        return (
            f"epsilon {self._epsilon:g} at delta {self._delta:g}; spent: {self.spent:.3g}; "
            f"left for one more study: {_rounded_down(self.left())}"
        )

    def describe_after(self, study: str, mu: float) -> str:
        """What a study that costs mu does to the budget, in a sentence."""
        try:
            self.check(study, mu)
        except RefusedBySiteError:
            return "This site will refuse the study: it would exceed the budget."
        if self._is_charged(study):
            return "This study was charged before; running it again costs nothing more."
        return f"After this study, epsilon {_rounded_down(self.left(mu))} is left for one more."

    def check(self, study: str, mu: float) -> None:
        """Refuse a study that was not charged yet and would exceed the budget."""
        if self._is_charged(study):
            return
        charges = self.charges()
        if total_mu([mu, *(charge.mu for charge in charges)]) > mu_of(self._epsilon, self._delta) * (1 + 1e-9):
            spent = f"{self.spent:.3g} of it is spent" if charges else "nothing of it is spent"
            raise RefusedBySiteError(
                f"the study would exceed the privacy budget of this site (epsilon {self._epsilon:g}; {spent})"
            )

    def charge(self, study: str, name: str, epsilon: float, delta: float, mu: float) -> None:
        """Charge a study once; refuse it if it would exceed the budget."""
        if self._is_charged(study):
            return
        self.check(study, mu)
        charge = Charge(datetime.now(UTC).isoformat(timespec="seconds"), study, name, epsilon, delta, mu)
        charges = [*self.charges(), charge]
        lines = [json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n" for one in charges]
        with storage.whole_file((self._folder / _BUDGET).resolve()) as file:  # a link stays a link
            file.write(b"".join(lines))

    def _is_charged(self, study: str) -> bool:
        return any(charge.study == study for charge in self.charges())

    def stored(self, study: str, number: int) -> Released | None:
        """A release that was made before; None if it was not."""
        path = self._path(study, number)
        if not path.exists():
            return None
        if not self._is_charged(study):
            raise ValueError(f"{self._folder / _BUDGET} lacks the charge of a study that released something")
        released: Released = decode(Message.decode(path.read_bytes()))
        return released

    def store(self, study: str, released: Released) -> None:
        """Keep a release, before it leaves."""
        path = self._path(study, released.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(str(path), encode(released).encode())

    def has_failed(self, study: str) -> bool:
        """Whether a release of the study could not be computed; it gets no further ones then."""
        return self._failure(study).exists()

    def store_failure(self, study: str) -> None:
        """Keep that a release could not be computed, before that becomes known."""
        self._failure(study).parent.mkdir(parents=True, exist_ok=True)
        storage.write(str(self._failure(study)), b"")

    def _failure(self, study: str) -> Path:
        return self._folder / _RELEASES / study / "failed"

    def _path(self, study: str, number: int) -> Path:
        return self._folder / _RELEASES / study / f"release-{number:04d}.message"


def _rounded_down(epsilon: float) -> str:
    """Two digits after the point, rounded down but for rounding errors of the accounting."""
    return f"{math.floor(epsilon * 100 + 1e-6) / 100:.2f}".rstrip("0").rstrip(".")
