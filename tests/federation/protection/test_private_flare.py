"""Private studies and masked sums over NVIDIA FLARE: the models of a simulation, job processes killed on the way,
budgets at the sites, and what the server received and held in memory. All studies run in one network."""

import hashlib
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason='needs NVIDIA FLARE: pip install "dmtrl[federation]"')

import dmtrl
from dmtrl.exceptions import FederationError
from dmtrl.federation.coordinator.results import MODEL, RESULT
from dmtrl.federation.flare import processes
from dmtrl.federation.flare.loopback import Loopback, set_up
from dmtrl.federation.flare.server.runs import Run
from dmtrl.federation.flare.server.supervisor import run_study_job
from dmtrl.federation.protection.base import Bounds
from dmtrl.federation.protection.noise.accounting import cost_of, epsilon_of, total_mu
from dmtrl.federation.protection.noise.releases import Exact, Releases, step_size
from dmtrl.federation.simulate import simulate
from dmtrl.federation.site import ledger
from dmtrl.federation.site.budget import Budget
from dmtrl.federation.site.ledger import Entry
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.site.site import LEDGER, Site
from dmtrl.federation.study.study_file import Study, parse_study
from dmtrl.progress import NoProgress
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import decode
from dmtrl.protocol.message import Message
from dmtrl.workflows.site import propose
from support.byte_search import found_in
from support.federation import kill
from support.private_studies import masked_text, numbers_of_single_sites, private_text
from support.server_records import ServerRecords
from support.shell_data import run as shell
from support.studies import SITES, clinic_files

pytestmark = [pytest.mark.faults, pytest.mark.federation, pytest.mark.slow]
DAY = '[columns.day]\nkind = "date"\nrange = [2020-01-01, 2022-12-31]'  # with it, too many features for 60 rows
MEMORY = sys.platform == "linux"  # can be read in /proc


def small(text: str) -> str:
    assert DAY in text
    return text.replace(DAY, DAY[:14] + 'kind = "ignored"')


@dataclass(frozen=True)
class Network:
    """A server that keeps records, and three sites."""

    federation: Loopback
    files: dict[str, Path]
    records: ServerRecords

    def folder(self, site: str) -> Path:
        return self.federation.members[site].folder

    def run(self, text: str) -> tuple[Study, Run]:
        """Run another study in the network, after every site has approved it."""
        path = self.federation.coordinator.study_file
        path.write_text(text)
        for site in SITES:
            propose(path, self.folder(site)).approve()
        return parse_study(text.encode()), run_study_job(self.federation.coordinator, NoProgress())

    def left(self, site: str, study: Study) -> list[Entry]:
        """What left a site for a study, each message once."""
        entries = [entry for entry in ledger.entries(self.folder(site) / LEDGER) if entry.study == study.hash]
        return list({entry.digest: entry for entry in reversed(entries)}.values())[::-1]

    def releases(self, site: str, study: Study) -> list[messages.Released]:
        paths = sorted((self.folder(site) / "private" / study.hash).glob("*.message"))
        return [decode(Message.decode(path.read_bytes())) for path in paths]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    folder = tmp_path_factory.mktemp("private")
    (folder / "study.toml").write_text(small(private_text()))
    files = clinic_files(folder)
    with set_up(folder / "flare", folder / "study.toml", files) as federation:
        records = ServerRecords(folder / "records", folder / "flare" / "sites")
        records.start(federation.coordinator)
        federation.start()
        yield Network(federation, files, records)
    shutil.rmtree(records.folder)


def crash_after(network: Network, site: str, count: int, run: Callable[[], object]) -> None:
    """Kill the site's job process after it has sent so many messages of a study."""
    path, killed, over = network.folder(site) / LEDGER, list[int](), threading.Event()

    def left() -> int:
        return sum(entry.name in ("released", "masked") for entry in ledger.entries(path))

    before = left()

    def crash() -> None:
        if processes.wait_until(lambda: left() >= before + count or over.is_set(), 200, 0.02) and not over.is_set():
            killed.append(left())
            kill(*processes.job_processes(network.federation.members[site].kit))

    thread = threading.Thread(target=crash)
    thread.start()
    try:
        run()
    finally:
        over.set()
        thread.join()
    assert killed, "the job was killed while it ran"


def assert_as_simulated(network: Network, study: Study, run: Run, folder: Path) -> None:
    """A simulation whose sites have made the same releases before gives the same model and sends the same bytes."""
    for site in SITES:
        place = folder / "sites" / site
        shutil.copytree(network.folder(site) / "private" / study.hash, place / "private" / study.hash)
        shutil.copyfile(network.folder(site) / "budget.jsonl", place / "budget.jsonl")
    simulated = simulate(study, network.files, folder)
    model = dmtrl.load(run.folder / MODEL)
    np.testing.assert_array_equal(model.coef_, simulated.model.coef_)
    np.testing.assert_array_equal(model.intercept_, simulated.model.intercept_)
    np.testing.assert_array_equal(model.task_correlation_, simulated.model.task_correlation_)
    for k, site in enumerate(SITES):
        sent = [(entry.name, entry.digest) for entry in network.left(site, study)]
        assert [name for name, _ in sent] == ["welcome", "begun", *["released"] * study.privacy.releases, "finished"]
        assert sent == [(e.name, e.digest) for e in ledger.entries(folder / "sites" / site / LEDGER)]
        own = dmtrl.load(network.folder(site) / "results" / "model.dmtrl")
        np.testing.assert_array_equal(own.coef_[0], model.coef_[k])


def assert_charged_once(network: Network, study: Study) -> None:
    for site in SITES:
        budget = Budget(network.folder(site), Policy.epsilon, Policy.delta)
        [charge] = [charge for charge in budget.charges() if charge.study == study.hash]
        assert (charge.epsilon, charge.delta) == (study.privacy.epsilon, study.privacy.delta)
        assert epsilon_of(charge.mu, charge.delta) == pytest.approx(study.privacy.epsilon, rel=1e-9)
        assert budget.spent == pytest.approx(epsilon_of(total_mu(c.mu for c in budget.charges()), Policy.delta))
        status = shell("site", "status", "--site", network.folder(site)).output
        assert f"privacy budget: epsilon 8 at delta 1e-05; spent: {budget.spent:.3g}; left" in status


def exact_numbers(network: Network, site: str, study: Study) -> list[Exact]:
    """What the site's releases would be without noise."""
    place, step = Site(network.folder(site)), step_size(study.privacy, study.loss)
    label = sum(map(abs, study.target.range or (-0.5, 0.5)))
    blocks = place.participation.problem.blocks(Bounds(study.privacy.row_norm, study.target.range))
    exact = Releases(study.privacy, study.loss, blocks, label)
    return [exact.exact(release.point, step) for release in network.releases(site, study)]


def assert_noise_is_that_of_the_study(network: Network, study: Study) -> None:
    noises, mu = [], cost_of(study.privacy) / study.privacy.releases**0.5
    for site in SITES:
        released = network.releases(site, study)
        assert len(released) == study.privacy.releases
        for release, exact in zip(released, exact_numbers(network, site, study), strict=True):
            np.testing.assert_allclose(release.std, exact.sensitivity / mu, rtol=1e-12)
            noises.append((release.values - exact.values) / release.std[:, None])
    noise = np.array(noises)
    assert abs((noise**2).mean() - 1.0) < 6.0 * (2.0 / noise.size) ** 0.5
    assert len(np.unique(noise)) == noise.size, "no number is used twice"


@pytest.mark.parametrize(("mode", "loss"), [("moments", "squared"), ("newton", "logistic")])
def test_noisy_moments_and_curvatures(network: Network, tmp_path: Path, mode: str, loss: str) -> None:
    """Modes A and B: the model of the simulation; noise of the stated size, which the server got and nothing else."""
    study, run = network.run(small(private_text(mode, loss, epsilon=2.0)))
    assert study.privacy.mode == mode
    assert_as_simulated(network, study, run, tmp_path)
    assert_charged_once(network, study)
    assert_noise_is_that_of_the_study(network, study)
    received = b"".join(network.records.frames())
    for site in SITES:
        for release, exact in zip(network.releases(site, study), exact_numbers(network, site, study), strict=True):
            assert len(found_in(received, release.values)) == release.values.size, "the records are complete"
            assert not len(found_in(received, exact.values))
    if mode == "newton" and MEMORY:  # the control of the test below: what the server has is found in its memory
        memory = network.records.memory(study.hash)
        for site in SITES:
            values = network.releases(site, study)[2].values
            assert len(found_in(memory, values)) == values.size


def test_noisy_rounds_survive_the_crash_of_a_job(network: Network, tmp_path: Path) -> None:
    """Mode C: nothing is released twice or charged twice, and the model is that of the simulation."""
    done: list[tuple[Study, Run]] = []
    text = small(private_text("rounds", more="releases = 60"))
    crash_after(network, "south", 6, lambda: done.append(network.run(text)))
    study, run = done[0]
    assert_as_simulated(network, study, run, tmp_path)
    assert_charged_once(network, study)
    assert_noise_is_that_of_the_study(network, study)


def test_the_server_of_masked_sums_never_has_a_number_of_a_site(network: Network, tmp_path: Path) -> None:
    """Neither in what it received nor in its memory, with a job process of a site killed on the way."""
    done: list[tuple[Study, Run]] = []
    text = small(masked_text("tolerance = 1e-9", '[results]\ncoordinator = "summary"'))
    crash_after(network, "south", 6, lambda: done.append(network.run(text)))
    study, run = done[0]
    result = json.loads((run.folder / RESULT).read_text())
    assert result["sites"] == list(SITES)
    assert result["relative_gap"] <= 1e-9
    sent = {hashlib.sha256(message.encode()).hexdigest(): message for message in network.records.messages()}
    numbers = np.concatenate([m.arrays["values"] for m in sent.values() if m.name == "masked"])
    assert len(np.unique(numbers)) == len(numbers), "64-bit integers that are random by themselves"
    assert abs((numbers / 2.0**64).mean() - 0.5) < 6.0 / (12 * len(numbers)) ** 0.5
    for site in SITES:
        left = network.left(site, study)
        assert {entry.name for entry in left} == {"welcome", "shared_key", "masked", "begun", "finished"}
        assert all(entry.digest in sent for entry in left), "the records are complete"
    received = b"".join(network.records.frames())
    at_the_end = [network.folder(site) / "masked" / "state.npz" for site in SITES]
    assert not len(found_in(received, numbers_of_single_sites(at_the_end)))
    if MEMORY:
        then = numbers_of_single_sites([network.records.folder / study.hash / f"{site}.npz" for site in SITES])
        assert not len(found_in(received, then))
        assert not len(found_in(network.records.memory(study.hash), then))


def test_a_study_beyond_the_budget_is_refused_before_anything_leaves(network: Network) -> None:
    """The budget is that of all studies of the network together; the same study again costs nothing."""
    text = small(private_text("newton", epsilon=Policy.epsilon, more="releases = 3"))
    for site in SITES:  # also if this test runs alone
        Budget(network.folder(site), Policy.epsilon, Policy.delta).charge("another study", "", 1.0, 1e-5, 0.3)
    before = {site: (network.folder(site) / "budget.jsonl").read_bytes() for site in SITES}
    with pytest.raises(FederationError, match="would exceed the privacy budget of this site"):
        network.run(text)
    for site in SITES:
        assert {entry.name for entry in network.left(site, parse_study(text.encode()))} <= {"refused"}
        assert (network.folder(site) / "budget.jsonl").read_bytes() == before[site]
