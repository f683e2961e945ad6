"""Private studies and masked sums over NVIDIA FLARE, with a site's job process killed on the way."""

import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVIDIA FLARE: pip install "dmtrl[federation]"')

from dmtrl.federation import ledger
from dmtrl.federation.coordinate import RESULT
from dmtrl.federation.flare import processes
from dmtrl.federation.flare.loopback import set_up
from dmtrl.federation.flare.supervisor import run_study_job
from dmtrl.federation.site import LEDGER
from dmtrl.workflows.progress import NoProgress
from support.federation import kill
from support.private_studies import masked_text, private_text
from support.studies import SITES, clinic_files

pytestmark = [pytest.mark.federation, pytest.mark.slow]
DAY = '[columns.day]\nkind = "date"\nrange = [2020-01-01, 2022-12-31]'  # with it, too many features for 60 rows


@pytest.mark.parametrize("kind", ["noise", "masks"])
def test_a_study_survives_the_crash_of_a_job_and_releases_nothing_twice(tmp_path: Path, kind: str) -> None:
    source = private_text("rounds", more="releases = 60") if kind == "noise" else masked_text("tolerance = 1e-9")
    (tmp_path / "study.toml").write_text(source.replace(DAY, DAY[:14] + 'kind = "ignored"'))
    with set_up(tmp_path / "flare", tmp_path / "study.toml", clinic_files(tmp_path)) as federation:
        federation.start()
        member, killed = federation.members["south"], []

        def left() -> int:
            path = member.folder / LEDGER
            return sum(entry.name in ("released", "masked") for entry in ledger.entries(path))

        def crash() -> None:
            if processes.wait_until(lambda: left() >= 6, 200, 0.02):
                killed.append(left())
                kill(*processes.job_processes(member.kit))

        thread = threading.Thread(target=crash)
        thread.start()
        run = run_study_job(federation.coordinator, NoProgress())
        thread.join()
        result = json.loads((run.folder / RESULT).read_text())
        assert killed, "the job was killed while it ran"
        assert result["sites"] == list(SITES)
        entries = [entry for entry in ledger.entries(member.folder / LEDGER) if not entry.repeated]
        if kind == "noise":
            assert sum(entry.name == "released" for entry in entries) == 60
            assert len((member.folder / "budget.jsonl").read_bytes().splitlines()) == 1
        else:
            assert result["relative_gap"] <= 1e-9
