"""A site: what it refuses and with which sentence, and that nothing of its data is in what leaves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.protection.plain.site import PlainSite
from dmtrl.federation.simulate import LocalSites
from dmtrl.federation.site.approval import APPROVAL, STUDY, approval_text, approve, create_site, what_leaves, withdraw
from dmtrl.federation.site.data_check import check_file
from dmtrl.federation.site.ledger import entries, verify
from dmtrl.federation.site.policy import MESSAGES, Policy, read_policy
from dmtrl.federation.site.site import Site
from dmtrl.federation.study.study_file import Study, parse_study
from dmtrl.protocol import PROTOCOL, rounds
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from support.private_studies import private_study
from support.shell_data import write
from support.site_requests import PREPARE, begin, refusal, site_of
from support.studies import CLINIC, approved_site, clinic, clinic_files, clinic_table

DESCRIBE = encode(rounds.Describe())


def hello(study: Study) -> Message:
    return encode(messages.Hello(study=study.hash, protocol=PROTOCOL, dmtrl="0.1"))


def test_a_site_answers_an_approved_study(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    answer = decode(site.answer(hello(site.study)))
    assert answer.rows.tolist() == [60]
    site.answer(encode(begin(site)))
    described = decode(site.answer(DESCRIBE))
    assert described.rows.tolist() == [60]
    assert [entry.name for entry in entries(site.folder / "ledger.jsonl")] == ["welcome", "begun", "description"]
    assert verify(site.folder / "ledger.jsonl") == 3


def test_no_study_was_approved(tmp_path: Path) -> None:
    create_site(tmp_path / "site", "north", write(clinic_table(0), tmp_path / "north.csv"))
    assert "no study was approved here" in refusal(Site(tmp_path / "site"), hello(clinic()))


def test_another_study_was_approved(tmp_path: Path) -> None:
    other = clinic(text=CLINIC + "\n")
    words = refusal(site_of(tmp_path), hello(other))
    assert f"the study with the hash {other.hash[:16]} was not approved here" in words


def test_the_study_was_changed_after_the_approval(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    path = site.folder / STUDY
    path.write_bytes(path.read_bytes().replace(b"folds = 3", b"folds = 4"))
    assert "changed after it was approved" in refusal(Site(site.folder), hello(clinic()))


def test_an_approval_is_withdrawn_during_a_run(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.answer(hello(site.study))
    assert withdraw(site.folder).hash == clinic().hash
    assert "no study was approved here" in refusal(site, hello(clinic()))
    with pytest.raises(ValueError, match="no study is approved"):
        withdraw(site.folder)


def test_the_approval_of_another_study_ends_a_run(tmp_path: Path) -> None:
    site, other = site_of(tmp_path), clinic(text=CLINIC + "\n")
    site.answer(encode(begin(site)))
    site.answer(DESCRIBE)
    approve(site.folder, other, "approved in a test")
    assert "was not approved here" in refusal(site, hello(clinic()))
    assert "was not approved here" in refusal(site, DESCRIBE)
    assert decode(site.answer(hello(other))).rows.tolist() == [60]


def test_another_study_is_approved_while_an_answer_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is refused, and nothing of the study before is used under the new approval."""
    site, other, build = site_of(tmp_path), clinic(text=CLINIC + "\n"), PlainSite.open

    def approve_then_build(half: PlainSite, begun: messages.Begin) -> None:
        approve(site.folder, other, "approved in a test")
        site.study  # noqa: B018  # notices it
        build(half, begun)

    request = encode(begin(site))
    monkeypatch.setattr(PlainSite, "open", approve_then_build)
    assert "was not approved here" in refusal(site, request)
    monkeypatch.undo()
    assert "was not approved here" in refusal(site, DESCRIBE)


def test_another_protocol_number_is_refused_and_both_are_named(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    other = encode(messages.Hello(study=site.study.hash, protocol=PROTOCOL + 7, dmtrl="9.9"))
    words = refusal(site, other)
    assert f"the protocol number {PROTOCOL} (dmtrl " in words
    assert f"the coordinator has {PROTOCOL + 7} (dmtrl 9.9)" in words


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"study": "x"}', b"\xff"])
def test_a_damaged_approval_is_none(tmp_path: Path, content: bytes) -> None:
    site = site_of(tmp_path)
    (site.folder / APPROVAL).write_bytes(content)
    assert "its approval is damaged" in refusal(Site(site.folder), hello(clinic()))
    with pytest.raises(ValueError, match="is damaged; approve the study again"):
        withdraw(site.folder)


def test_an_unknown_message_and_an_answer_are_refused(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert "does not answer" in refusal(site, Message("rows"))
    assert "does not answer" in refusal(site, Message("improved"))


def test_a_message_that_the_policy_does_not_allow(tmp_path: Path) -> None:
    site = site_of(tmp_path, messages=tuple(name for name in MESSAGES if name != "cell_counts"))
    site.answer(hello(site.study))
    assert refusal(site, encode(messages.CountCells())) == (
        "the policy of this site does not allow the message 'cell_counts'"
    )


def test_rounds_before_the_problem_are_refused(tmp_path: Path) -> None:
    assert "must send 'begin'" in refusal(site_of(tmp_path), DESCRIBE)


def test_too_many_weights_for_the_rows(tmp_path: Path) -> None:
    site = site_of(tmp_path, parameters_per_row=0.1)
    words = refusal(site, encode(begin(site)))
    assert "too large for the task 'north': this site allows 0.1 weights per row" in words


def run_rounds(site: Site, count: int) -> None:
    d = decode(site.answer(DESCRIBE)).features
    site.answer(encode(replace(PREPARE, max_passes=5, intercept_ridge=None)))
    for number in range(count):
        w = np.full((1, d + 1), 0.01 * number)
        site.answer(encode(rounds.Round(round=number, target=0.1, w=w, step=np.ones(1), intercept_step=np.ones(1))))


def test_the_most_rounds_hold_also_after_a_restart(tmp_path: Path) -> None:
    site = site_of(tmp_path, most_rounds=5, parameters_per_row=1.0)
    site.answer(encode(begin(site)))
    run_rounds(site, 3)
    again = Site(site.folder)
    run_rounds(again, 3)  # the same rounds again: nothing new leaves
    assert [entry.repeated for entry in entries(site.folder / "ledger.jsonl") if entry.name == "improved"] == (
        [False] * 3 + [True] * 3
    )
    with pytest.raises(RefusedBySiteError, match="'improved' may leave this site at most 5 times"):
        run_rounds(Site(site.folder), 7)


def test_other_folds_than_those_of_the_study_are_refused(tmp_path: Path) -> None:
    site = site_of(tmp_path, parameters_per_row=1.0)
    site.answer(encode(begin(site)))
    held = decode(site.answer(encode(rounds.HoldOut(fold=0, folds=3, seed=0))))
    assert held.weight.tolist() == [40.0]
    for wrong in (
        rounds.HoldOut(fold=0, folds=60, seed=0),  # would hold out one row, and its errors would tell the row
        rounds.HoldOut(fold=0, folds=3, seed=1),
        rounds.HoldOut(fold=3, folds=3, seed=0),
    ):
        assert "other rows than the study says" in refusal(site, encode(wrong))


def test_a_message_leaves_no_more_often_than_the_approval_says(tmp_path: Path) -> None:
    site = site_of(tmp_path, most_runs=2)
    for mean in (0.0, 1.0, 0.0, 1.0):  # the same bytes again tell nothing new
        site.answer(encode(messages.MeasureSpread(means=np.full(12, mean))))
    another = encode(messages.MeasureSpread(means=np.full(12, 2.0)))
    assert refusal(site, another) == "the message 'spread' may leave this site at most 2 times"
    assert Site(site.folder).answer(encode(messages.MeasureSpread(means=np.full(12, 1.0)))).name == "spread"
    assert "at most 2 times" in refusal(Site(site.folder), another), "also after a restart"


def test_other_task_numbers_than_the_site_has(tmp_path: Path) -> None:
    site = site_of(tmp_path, parameters_per_row=1.0)
    wrong = replace(begin(site), numbers=np.array([-1]))
    assert "numbered other tasks" in refusal(site, encode(wrong))


def test_a_file_that_does_not_fit_is_refused_without_its_words(tmp_path: Path) -> None:
    words = clinic_table(0).column("ward").to_pylist()
    words[7] = "isolation"
    table = clinic_table(0)
    table = table.set_column(table.column_names.index("ward"), "ward", [words])
    site = approved_site(tmp_path / "site", clinic(), "north", write(table, tmp_path / "north.csv"))
    with pytest.raises(RefusedBySiteError) as caught:
        site.answer(hello(site.study))
    assert "a level that the study does not list" in caught.value.reason
    assert "isolation" not in caught.value.reason
    assert "isolation" in caught.value.detail, "the site's own people see it"


def test_the_data_file_is_gone(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    (tmp_path / "north.csv").unlink()
    words = refusal(Site(site.folder), hello(site.study))
    assert words == "its data file does not exist", "the path stays at the site"


def test_an_unexpected_error_does_not_quote_the_data(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    wrong = encode(messages.SumFeatures(preparation='{"secret": 1}'))
    assert refusal(site, wrong) == "ValueError while it answered 'sum_features'; the log of the site has the details"


def test_checkpoints_stay_in_the_folder_of_the_site(tmp_path: Path) -> None:
    site = site_of(tmp_path, parameters_per_row=1.0)
    site.answer(encode(begin(site)))
    run_rounds(site, 1)
    for number in (1, 2, 3):
        last = f"/coordinator/version-{number - 1:06d}-0123abcd" if number > 1 else ""
        save = rounds.Save(to=f"/coordinator/version-{number:06d}-0123abcd", last=last)
        saved = decode(site.answer(encode(save)))
        assert saved.kept
    kept = sorted(path.name for path in (site.folder / "run" / "checkpoint").iterdir())
    assert kept == ["version-000002-0123abcd", "version-000003-0123abcd"]
    again = Site(site.folder)
    restored = decode(again.answer(encode(rounds.Restore(source="C:\\x\\version-000003-0123abcd"))))
    assert np.abs(restored.b).sum() > 0
    for name in ("../../elsewhere", "version-1-0123abcd/..", "/etc"):
        assert "is not one" in refusal(again, encode(rounds.Restore(source=name)))


def test_a_restarted_site_gives_the_same_bits(tmp_path: Path) -> None:
    site = site_of(tmp_path, parameters_per_row=1.0)
    site.answer(encode(begin(site)))
    run_rounds(site, 4)
    run_rounds(Site(site.folder), 4)
    sent = [entry.digest for entry in entries(site.folder / "ledger.jsonl") if entry.name == "improved"]
    assert sent[:4] == sent[4:]


def test_the_approval_says_what_leaves(tmp_path: Path) -> None:
    study = clinic()
    path = clinic_files(tmp_path)["north"]
    text = approval_text(study, Policy("north", str(path)), check_file(study, path), tmp_path)
    for words in (
        study.hash,
        "'ill' (yes against no)",
        "north: 60 rows",
        "improved:",
        "at most 20,000 times",
        "What is never sent",
        "no noise is added",
        "each site gets the weights of its own tasks",
        "at least 10 rows",
        "not private by themselves",
        "compute single rows",
        "Approve only if you trust the operator of the server",
        "Rows in each of 3 folds, at least: north: 20.",
    ):
        assert words in text
    refused = replace(Policy("north", ""), messages=tuple(name for name in MESSAGES if name != "scores"))
    assert "(refused by the policy of this site)" in approval_text(study, refused, check_file(study, path), tmp_path)


def test_the_approval_names_every_message() -> None:
    """Those of ordinary studies, of private ones, and of those with masked sums."""
    masked = clinic().source.decode().replace("lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]", "lambda = 0.3")
    masked += '[limits]\nsites = 3\n[privacy]\naggregation = "masked"\n'
    studies = clinic(), private_study(), parse_study(masked.encode())
    named = {item.message for study in studies for item in what_leaves(study, Policy("north", ""))}
    assert named == set(MESSAGES)


def test_no_message_is_larger_than_the_approval_says(tmp_path: Path) -> None:
    from dmtrl.federation.simulate import simulate

    study, files = clinic(), clinic_files(tmp_path)
    simulate(study, files, tmp_path / "out", policy=Policy("", "", parameters_per_row=1.0))
    folder = tmp_path / "out" / "sites" / "north"
    stated = {item.message: item for item in what_leaves(study, read_policy(folder))}
    left = list(entries(folder / "ledger.jsonl"))
    for entry in left:
        assert entry.numbers <= stated[entry.name].numbers, entry.name
    for name, item in stated.items():
        assert len([entry for entry in left if entry.name == name and not entry.repeated]) <= item.times


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('site = "nor th"', "letters, digits"),
        ("minimum_rows = 0", "integer of at least 1"),
        ("parameters_per_row = -1", "positive number"),
        ('messages = ["rows"]', "unknown message 'rows'"),
        ('messages = ["welcome", "welcome"]', "holds a value twice"),
        ('messages = "welcome"', "must be a list"),
        ("private_only = 1", "must be true or false"),
        ("delta = 1.0", "delta must be between 0 and 1"),
        ("most_round = 3", "did you mean 'most_rounds'?"),
        ("site = ", "line 1"),
    ],
)
def test_a_wrong_policy_file_is_refused(tmp_path: Path, line: str, words: str) -> None:
    head = "" if line.startswith("site") else 'site = "north"\n'
    (tmp_path / "policy.toml").write_text(f'{line}\n{head}data = "x.csv"\n')
    with pytest.raises(ValueError, match=r"policy\.toml") as caught:
        read_policy(tmp_path)
    assert words in str(caught.value)


def test_a_new_approval_replaces_the_old_one(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    other = clinic(text=CLINIC + "\n")
    approve(site.folder, other, "")
    again = Site(site.folder)
    again.answer(hello(other))
    assert "was not approved here" in refusal(again, hello(clinic()))


def test_the_conformance_of_local_sites_repeats_answers(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    carrier = LocalSites([site.folder])
    for _ in range(2):
        carrier.post(0, 1, [hello(site.study)])
        assert carrier.fetch(None)[1].name == "welcome"
    assert verify(site.folder / "ledger.jsonl") == 1, "a repeated number is answered from memory"
