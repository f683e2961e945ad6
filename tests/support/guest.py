"""A program of another library that also uses dmtrl: prints the state of the process before and after as JSON.

It begins with imports of the packages that dmtrl uses (scikit-learn draws random numbers), so that what changes
afterwards is the doing of dmtrl. Argument: a folder for files.
"""

import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numba
import numpy as np
import pandas as pd
import plotly.graph_objects
import plotly.io
import scipy.linalg
import sklearn.metrics
import sklearn.model_selection
from numba.core import event
from threadpoolctl import ThreadpoolController

LOCK_CALLS: list[str] = []


def watch_locks(name: str, arguments: tuple[Any, ...]) -> None:
    if name == "fcntl.flock" or (name == "open" and str(arguments[0]).endswith("dmtrl.lock")):
        LOCK_CALLS.append(name)


def blas() -> list[Any]:
    found = ThreadpoolController().select(user_api="blas").info()
    return sorted((library["filepath"], library["num_threads"]) for library in found)


def loggers() -> dict[str, Any]:
    every = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    every["root"] = logging.root
    facts = {name: [one.level, one.propagate, one.disabled, repr(one.handlers)] for name, one in every.items()}
    return {name: fact for name, fact in facts.items() if fact != [0, True, False, "[]"]}  # one that nobody configured


def state() -> dict[str, Any]:
    return {
        "listeners": {kind: repr(listeners) for kind, listeners in event._registered.items() if listeners},
        "blas": blas(),
        "warnings": [repr(entry) for entry in warnings.filters],
        "showwarning": repr(warnings.showwarning),
        "logging": [loggers(), logging.root.manager.disable, logging.raiseExceptions],
        "numpy errors": [np.geterr(), repr(np.geterrcall()), np.get_printoptions()],
        "signals": {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "numba": [numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS, numba.config.THREADING_LAYER],
        "random numbers": [repr(random.getstate()), repr(np.random.get_state())],  # noqa: NPY002
        "start method": multiprocessing.get_start_method(allow_none=True),
        "matplotlib": [repr(sorted(mpl.rcParams.items(), key=str)), plt.get_fignums()],
        "plotly": [plotly.io.templates.default, plotly.io.renderers.default],
        "pandas": [
            pd.get_option(name) for name in ("display.precision", "mode.chained_assignment", "display.max_rows")
        ],
        "sklearn": sklearn.get_config(),
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.displayhook, sys.unraisablehook)],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
    }


class Stop(Exception):
    pass


def main(folder: Path) -> None:
    scipy.linalg.eigh(np.eye(64))  # BLAS has computed something
    sys.addaudithook(watch_locks)
    plotly.graph_objects.Figure(plotly.graph_objects.Scatter(x=[1], y=[2]))
    state()  # plotly adds warnings filters when its figures and renderers are first used
    states = {"before": state()}

    import dmtrl

    for name in dmtrl.__all__:
        getattr(dmtrl, name)
    from dmtrl.report.model_page.page import write_model_page

    states["import"] = state()
    X, tasks = np.random.default_rng(0).standard_normal((40, 3)), np.repeat([0, 1], 20)
    y, inside = X.sum(axis=1), []
    model = dmtrl.MTRLRegressor(callbacks=[lambda record: inside.append(blas())]).fit(X, y, tasks=tasks)
    model.predict(X, tasks=tasks)
    states["fit"] = state()

    def stop(record: object) -> None:
        raise Stop

    try:
        dmtrl.MTRLRegressor(callbacks=[stop]).fit(X, y, tasks=tasks)
    except Stop:
        states["failing fit"] = state()
    write_model_page(model, folder / "page.html")
    dmtrl.TaskCorrelationDisplay.from_estimator(model)
    plt.close("all")
    states["page and plot"] = state()
    of_fit = len(LOCK_CALLS)

    print("ready", flush=True)
    sys.stdin.readline()  # now another process holds the locks
    sys.path.insert(0, str(folder))
    unrelated = __import__("unrelated")
    answers = [unrelated.plain(1), unrelated.cached(1), unrelated.cached(1.5)]
    stats = unrelated.cached.stats
    result = {"states": states, "inside": inside, "of_fit": of_fit, "after": len(LOCK_CALLS) - of_fit}
    print(json.dumps(result | {"answers": answers, "misses": sum(stats.cache_misses.values())}, default=repr))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
