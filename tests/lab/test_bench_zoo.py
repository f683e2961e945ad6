"""`dmtrl-lab bench zoo`: a seed determines its problem, problems are what they are called, the table counts by hand."""

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse

from dmtrl.losses import BUILTIN, REGRESSION, get_loss
from dmtrl.report.content import Table
from dmtrl_lab.bench import zoo
from dmtrl_lab.cli.main import main
from dmtrl_lab.experiments.experiment import Record
from dmtrl_lab.experiments.records import Store

SPECS = [zoo.draw_spec(seed) for seed in range(zoo.PROBLEMS)]


def test_the_problems_cover_every_loss_and_every_kind_of_features() -> None:
    assert {spec.loss for spec in SPECS} == set(BUILTIN)
    assert {spec.features for spec in SPECS} == set(zoo.FEATURES)
    assert all(3 <= s.m <= 150 and 10 <= s.n <= 200 and 5 <= s.d <= 500 and s.m * s.n * s.d <= zoo.CELLS for s in SPECS)
    assert all(1e-5 <= spec.reg_lambda <= 1 for spec in SPECS)
    assert max(spec.m for spec in SPECS) > 100
    assert max(spec.d for spec in SPECS) > 400


def test_a_seed_determines_its_problem() -> None:
    assert zoo.draw_spec(7) == zoo.draw_spec(7) != zoo.draw_spec(8)
    sparse_spec = next(spec for spec in SPECS if spec.features == "sparse")
    (X, y, task), (X2, y2, task2) = zoo.make_rows(sparse_spec), zoo.make_rows(sparse_spec)
    np.testing.assert_array_equal(X.toarray(), X2.toarray())
    np.testing.assert_array_equal(np.column_stack([y, task]), np.column_stack([y2, task2]))


@pytest.mark.parametrize("kind", zoo.FEATURES)
def test_rows_are_of_their_kind(kind: str) -> None:
    X, y, task = zoo.make_rows(zoo.Spec(3, 6, 80, 12, kind, "logistic", 0.1))
    assert X.shape == (len(y), 12)
    assert sparse.issparse(X) == (kind == "sparse")
    assert set(np.bincount(task) // 10) <= {4, 5, 6, 7, 8}
    assert all(set(y[task == i]) == {-1, 1} for i in range(6))
    if kind == "binary":
        assert set(np.unique(X)) == {0.0, 1.0}
    elif kind == "sparse":
        assert 0 < X.nnz < 0.5 * len(y) * 12
    else:
        spread, mean = X.std(axis=0), np.abs(X.mean(axis=0))
        off_diagonal = np.abs(np.corrcoef(X.T) - np.eye(12)).max()
        assert (spread.max() / spread.min() > 10) == (kind == "scaled")
        assert (off_diagonal > 0.5) == (kind == "correlated")
        assert (np.median(mean / spread) > 3) == (kind == "offset")


@pytest.mark.parametrize("loss", BUILTIN)
def test_labels_suit_the_loss(loss: str) -> None:
    _, y, _ = zoo.make_rows(zoo.Spec(1, 5, 40, 6, "plain", loss, 0.1))
    if loss == "poisson":
        assert y.min() >= 0
        assert np.array_equal(y, np.round(y))
    else:
        assert (len(set(y)) > 2) == (get_loss(loss).kind == REGRESSION)


def test_what_is_certified_has_the_gap() -> None:
    figures = zoo.fit_problem(zoo.Spec(2, 4, 30, 5, "plain", "squared", 0.01))
    assert figures["certified"]
    assert figures["gap"] <= zoo.TOL
    stopped = zoo.fit_problem(zoo.Spec(2, 4, 30, 5, "plain", "squared", 0.01), max_rounds=1)
    assert stopped["rounds"] == 1
    assert stopped["certified"] == (stopped["gap"] <= zoo.TOL)


def test_seeds_say_the_kind_of_a_problem() -> None:
    kinds = [zoo.kind_of(seed) for seed in (0, 299, 1000, 2059, 3059, 10_000, 11_000, 23_000)]
    default, strong, strongest, levels = zoo.DEFAULT, zoo.STRONG, zoo.STRONGEST, zoo.LEVELS
    assert kinds == [default, default, strong, strongest, levels, default, strong, levels]
    seeds = [run.params["seed"] for run in zoo.runs(False)]
    assert len(seeds) == len(set(seeds)) == 3 * (zoo.PROBLEMS + 3 * zoo.OTHER_PROBLEMS)


@pytest.mark.parametrize("loss", ["squared", "hinge", "poisson"])
def test_offsets_predict_and_levels_are_shrunk_by_rows(loss: str) -> None:
    spec = zoo.Spec(3000, 6, 40, 5, "plain", loss, 0.1, zoo.LEVELS)
    data, ridge = zoo.with_offsets(spec)
    assert data.offset is not None
    assert np.corrcoef(data.offset, data.y)[0, 1] > 0.2
    # kappa omega_i / n_i with omega_i = n_i m / N
    assert np.allclose(ridge * len(data.y) / data.m, ridge[0] * len(data.y) / data.m)
    assert 0.1 <= ridge[0] * len(data.y) / data.m <= 100
    assert zoo.fit_problem(spec)["certified"]


def test_a_strong_common_part_is_that_of_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    real = zoo.estimator

    def record(loss: str, **parameters: object) -> object:
        made.append(parameters)
        return real(loss, **parameters)

    monkeypatch.setattr(zoo, "estimator", record)
    for kind in (zoo.DEFAULT, zoo.STRONG, zoo.STRONGEST):
        zoo.fit_problem(zoo.Spec(1, 3, 20, 3, "plain", "squared", 0.1, kind))
    assert [one.get("common") for one in made] == [None, 100.0, 1000.0]


def figures(seed: int, rounds: int, **more: object) -> dict[str, object]:
    spec = {"seed": seed, "m": 3, "n": 10, "d": 5, "features": "plain", "loss": "squared", "reg_lambda": 0.01}
    spec |= {"kind": zoo.DEFAULT}
    return {**spec, "rounds": rounds, "gap": 1e-4, "certified": True, "passes": 2.0, "seconds": 0.5, **more}


def test_the_tables_by_hand() -> None:
    all_figures = [figures(seed, rounds) for seed, rounds in enumerate([10, 12, 14, 16, 18, 20, 22, 24, 26])]
    all_figures.append(figures(9, 500, certified=False, gap=0.2, loss="hinge", kind=zoo.STRONG))
    all_figures.append({**figures(10, 0, features="sparse"), "refused": "Scale the features."})
    items = zoo.items([Record("bench zoo", {}, {}, one, 1.0) for one in all_figures])
    summary, worst = (item for item in items if isinstance(item, Table))
    rows = {row[0]: list(row[1:]) for row in summary.rows}
    assert rows["all"] == [11, 18, 26, 500, 1, 1, "5.5"]
    assert rows["loss: hinge"] == rows["kind: common 100"] == [1, 500, 500, 500, 1, 0, "0.5"]
    assert rows["seeds from 0"] == rows["all"]
    assert rows["features: sparse"][-2] == 1
    assert [row[0] for row in worst.rows][:3] == [9, 8, 7]
    assert "Refused: Scale the features." in [getattr(item, "text", "") for item in items]


def test_a_problem_that_is_refused_is_recorded_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: zoo.Spec) -> object:
        return np.full((40, 3), np.nan), np.arange(40.0), np.repeat([0, 1], 20)

    monkeypatch.setattr(zoo, "make_rows", refuse)
    assert "NaN" in zoo.fit_problem(zoo.Spec(2, 2, 20, 3, "plain", "squared", 0.01))["refused"]


def test_the_quick_zoo_and_one_problem_alone(tmp_path) -> None:
    result = CliRunner().invoke(main, ["bench", "zoo", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "rounds, median" in result.stdout
    records = Store(tmp_path).read().values()
    assert len(records) == zoo.QUICK_PROBLEMS + 3 * zoo.QUICK_OTHERS
    assert {record.figures["kind"] for record in records} == set(zoo.KINDS)
    assert all(record.figures["certified"] for record in records)
    assert all(record.figures["seed"] == record.params["seed"] for record in records)
    alone = CliRunner().invoke(main, ["bench", "zoo", "--only", "11"])
    assert alone.exit_code == 0, alone.output
    assert f"| 11 | default | {SPECS[11].m} | {SPECS[11].n} | {SPECS[11].d} |" in alone.stdout
    wrong = CliRunner().invoke(main, ["bench", "rounds", "--only", "11"])
    assert wrong.exit_code == 2
