"""The local solvers alone: one task, one thread, time to the same quality as LIBLINEAR and Snap ML.

A line is a loss and a shape, such as `hinge:12000x784`. Quality is the relative suboptimality of the objective mean
loss + lambda/2 |w|^2 in float64, with lambda = 1 / (C n); `optimum` gives a proven optimum. One line with its table:

    python -m dmtrl.lab.bench.kernels --only hinge:12000x784
    python -m dmtrl.lab.bench.kernels --only logistic:35000x10000 --peers dmtrl,liblinear --C 10 --quick
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from dmtrl.datasets import load_mnist_tasks
from dmtrl.lab.bench.competitors import CERTIFIED, DMTRL, FITS, Result, fastest, installed, not_installed
from dmtrl.lab.bench.optimum import Task, optimum
from dmtrl.lab.bench.timing import interleaved, ratio, read_bandwidth
from dmtrl.lab.experiments.records import Record, machine, versions
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import Section, Table, Text
from dmtrl.report.files import markdown_text

QUALITIES = (1e-3, 1e-4, 1e-5)
LOSSES = ("hinge", "logistic")
SHAPES = {
    "12000x784": 150,
    "60000x200": 120,
    "400000x50": 240,
    "35000x10000": 90,
}  # and estimated seconds
QUICK = {"2000x50": 1, "500x10000": 1}
DENSITY = 0.006
MNIST_DIGIT = 3
LIMIT = 10.0  # seconds; a solver that takes longer for a fit gets no tighter tolerance


def runs(quick: bool) -> list[Run]:
    shapes = QUICK if quick else SHAPES
    return [
        Run({"line": f"{loss}:{shape}", "quick": quick}, seconds)
        for loss in LOSSES
        for shape, seconds in shapes.items()
    ]


def measure(
    line: str, quick: bool, C: float = 1.0, names: Sequence[str] | None = None, repeats: int = 5
) -> Mapping[str, Any]:
    with threadpool_limits(1):
        return _measure(make_task(line, C), installed() if names is None else names, quick, repeats)


def make_task(line: str, C: float = 1.0) -> Task:
    """Return the task of a line. 784 columns are MNIST (a digit against the rest) if the data set is available."""
    loss, _, shape = line.partition(":")
    n, _, d = shape.partition("x")
    if loss not in LOSSES or not (n.isdigit() and d.isdigit()):
        raise ValueError(f"a line must be a loss ({', '.join(LOSSES)}) and a shape, like hinge:12000x784, got {line!r}")
    X, y = _rows(int(n), int(d))
    return Task(X, X.astype(np.float64), y, loss, 1.0 / (C * len(y)))


def _rows(n: int, d: int) -> tuple[Any, np.ndarray]:
    if d == 10000:
        return _text_like(n, d)
    if d == 784:
        try:
            task = load_mnist_tasks(digits=[MNIST_DIGIT], max_positives=None).train
        except (FileNotFoundError, OSError):
            pass
        else:
            rows = np.sort(np.random.default_rng(0).permutation(len(task.y))[:n])
            return _scaled(task.X[rows]), task.y[rows]
    return _correlated(n, d)


def _scaled(X: np.ndarray) -> np.ndarray:
    """Scale rows to a mean squared length of one, for which C = 1 is a common choice."""
    return np.ascontiguousarray(X / np.sqrt(np.mean(np.einsum("ij,ij->i", X, X))))


def _correlated(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated columns (a decaying spectrum), rows of length about one, and labels with about 10 % noise."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((d, d)) * (1.0 / np.sqrt(1.0 + np.arange(d)))[:, None]
    X = _scaled(rng.standard_normal((n, d), dtype=np.float32) @ mix.astype(np.float32))
    score = X @ rng.standard_normal(d).astype(np.float32)
    return X, np.where(score + 0.35 * score.std() * rng.standard_normal(n) > 0, 1.0, -1.0)


def _text_like(n: int, d: int) -> tuple[Any, np.ndarray]:
    """Return rows like tf-idf vectors of short texts: Zipf's law, length one, and one word in five is informative."""
    rng = np.random.default_rng(0)
    frequency = 1.0 / (5.0 + np.arange(d))
    words = np.maximum(rng.poisson(1.25 * DENSITY * d, n), 5)  # repeated words merge, which leaves about DENSITY
    column = np.searchsorted(np.cumsum(frequency / frequency.sum()), rng.random(words.sum())).clip(max=d - 1)
    row = np.repeat(np.arange(n), words)
    X = sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(n, d))
    X.data = (1.0 + np.log(X.data)) * -np.log(frequency[X.indices])
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = sparse.csr_matrix(X.multiply(1.0 / length[:, None])).astype(np.float32)
    X.sort_indices()
    score = X @ (rng.standard_normal(d) * (rng.random(d) < 0.2))
    return X, np.where(score + 0.5 * score.std() * rng.standard_normal(n) > 0, 1.0, -1.0)


def _measure(task: Task, names: Sequence[str], quick: bool, repeats: int) -> Mapping[str, Any]:
    fits = {name: FITS[name] for name in names}
    best = optimum(task)
    limit, spent = (1.0, 2.0) if quick else (LIMIT, 90.0)
    found = {name: fastest(name, task, best, QUALITIES, limit) for name in names}
    reached = {name: {str(eps): one.reached for eps, one in by_eps.items()} for name, by_eps in found.items()}
    competitors = {
        f"{name} {eps}": partial(fits[name], task, one.options)
        for eps in QUALITIES
        for name, by_eps in found.items()
        if (one := by_eps[eps]).options is not None
    }
    # the search was the warm-up
    timed = interleaved(competitors, 2 if quick else repeats, warm_up=False, clock=time.process_time, limit=spent)
    return {
        "rows": task.X.shape[0],
        "columns": task.X.shape[1],
        "loss": task.loss,
        "bytes": _bytes(task.X),
        "bandwidth": read_bandwidth(64 if quick else 512),
        "optimum": best.value,
        "optimum_accuracy": best.accuracy,
        "seconds": {name: {str(eps): timed.seconds.get(f"{name} {eps}") for eps in QUALITIES} for name in names},
        "reached": reached,
        "gave_up": {name: {str(e): one.seconds for e, one in by_eps.items()} for name, by_eps in found.items()},
        "options": {name: {str(eps): _describe(one) for eps, one in by_eps.items()} for name, by_eps in found.items()},
        "passes": {str(eps): one.fit.passes for eps, one in found.get(DMTRL, {}).items() if one.fit is not None},
        "not_installed": not_installed(),
    }


def _bytes(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if sparse.issparse(X) else int(X.nbytes)


def _describe(one: Result) -> str:
    if one.options is None or one.fit is None:
        return "not reached"
    return f"{one.options.solver}, tol {one.options.tol:g}, {one.fit.iterations} iterations"


def table_rows(figures: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    shape = f"{figures['rows']:,} x {figures['columns']:,}"
    for eps in map(str, QUALITIES):
        ours = figures["seconds"].get(DMTRL, {}).get(eps)
        for name, by_eps in figures["seconds"].items():
            theirs, near = by_eps[eps], f"{max(figures['reached'][name][eps], 0.0):.1e}"
            start = [f"{figures['loss']}, {shape}", f"{float(eps):g}", name]
            if theirs is None:
                spent = figures["gave_up"][name][eps]
                times = "" if ours is None else f"> {spent / float(np.median(ours)):.2g}"
                rows.append([*start, f"> {spent:.3g}", times, f"{near}: not reached", "closest attempt"])
                continue
            times = "" if ours is None else "1"
            if ours is not None and name != DMTRL:
                middle, low, high = ratio(theirs, ours)
                times = f"{middle:.2g} ({low:.2g} to {high:.2g})"
            seconds = float(np.median(theirs))
            share = ""
            if name == DMTRL and figures["passes"].get(eps, 0.0) > 0:
                read = figures["passes"][eps] * figures["bytes"] / seconds / figures["bandwidth"]
                share = f"{figures['passes'][eps]:.1f} passes, {100 * read:.0f} % of read bandwidth"
            rows.append([*start, f"{seconds:.3g}", times, near, share or figures["options"][name][eps]])
    return rows


def table(all_figures: Sequence[Mapping[str, Any]]) -> Table:
    proved = max(figures["optimum_accuracy"] for figures in all_figures)
    bandwidth = np.median([figures["bandwidth"] for figures in all_figures]) / 1e9
    missing = "".join(
        f" {one}." for one in sorted({one for figures in all_figures for one in figures["not_installed"]})
    )
    return Table(
        "Time to the same quality on one task and one thread",
        ["task", "quality", "solver", "seconds", "times dmtrl", "reached", "how"],
        [row for figures in all_figures for row in table_rows(figures)],
        f"Processor seconds on one thread, median of interleaved repeats, compile time excluded. The range of ratios "
        f"is in brackets; above one, dmtrl is faster. Quality is the objective over the optimum, minus one. Every "
        f"solver has the loosest tolerance and the fewest iterations that reach it; '{CERTIFIED}' stops at its own "
        f"certificate instead. The optima are proven to {proved:.0e}. One thread reads {bandwidth:.1f} GB/s here; "
        f"its share counts each pass over the rows once.{missing}",
    )


def summary(all_figures: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each task and quality: how many times longer the others take."""
    others = [name for name in FITS if name != DMTRL and any(name in figures["seconds"] for figures in all_figures)]
    rows = []
    for figures in all_figures:
        every = table_rows(figures)
        for ours in (row for row in every if row[2] == DMTRL):
            times = {row[2]: row[4] for row in every if row[1] == ours[1]}
            rows.append([ours[0], ours[1], ours[3], *(times.get(name, "") for name in others), ours[6]])
    return Table(
        "How many times longer others take",
        ["task", "quality", "dmtrl, seconds", *others, "dmtrl reads"],
        rows,
        "The same measurements side by side. Above one, dmtrl is faster.",
    )


def section(records: Sequence[Record]) -> Section:
    lead = (
        "One task alone, dense and sparse rows, lambda = 1/n (C = 1), no intercept; float32 for dmtrl and Snap ML, "
        "float64 for LIBLINEAR, which supports nothing else."
    )
    figures = [record.figures for record in records]
    return Section("One task, one thread", [Text(lead), summary(figures), table(figures)])


KERNELS = Experiment("bench kernels", runs, measure, section, {"qualities": QUALITIES, "C": 1.0, "solver_seed": 0})


def main() -> None:
    parser = argparse.ArgumentParser(description="One line of `dmtrl bench kernels`, with its table.")
    parser.add_argument("--only", help="a loss and a shape, such as hinge:12000x784 [all lines]")
    parser.add_argument("--peers", help="such as dmtrl,snapml [all that are installed]")
    parser.add_argument("--C", type=float, default=1.0, help="lambda is 1 / (C n) [1]")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small shapes")
    options = parser.parse_args()
    short = {"".join(filter(str.isalnum, name)).lower(): name for name in FITS}
    names = None if options.peers is None else [short[word.strip()] for word in options.peers.split(",")]
    lines = [options.only] if options.only else [str(run.params["line"]) for run in runs(options.quick)]
    print(machine(), ", ".join(f"{k} {v}" for k, v in versions().items()), flush=True)
    for line in lines:
        figures = measure(line, options.quick, options.C, names, options.repeats)
        print(f"\n{line} C={options.C:g}\n{markdown_text(table([figures]))}", flush=True)


if __name__ == "__main__":
    main()
