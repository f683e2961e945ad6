"""Try an installed dmtrl without its extras (`make dist`): it fits, saves, exports, and says what is missing.

Runs by itself with the Python of a fresh environment, where neither pytest nor the source is at hand.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import dmtrl
from dmtrl import MTRLClassifier, MTRLRegressor, MTRLRegressorCV

OPTIONAL = ("pandas", "polars", "pyarrow", "ray", "fsspec", "plotly", "jinja2", "matplotlib", "nvflare", "onnx")


def check(what: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"smoke test: {what} failed")
    print(f"  ok  {what}")


def says(what: str, sentence: str, call: Callable[[], Any]) -> None:
    """The call raises an error with this sentence."""
    try:
        call()
    except Exception as error:
        check(f"{what}: {error}", sentence in str(error))
    else:
        check(what, False)


def shell(*words: str, code: int = 0) -> str:
    """What a command prints on both streams; its exit code must be `code`."""
    done = subprocess.run([sys.executable, "-I", "-m", "dmtrl.cli.main", *words], capture_output=True, text=True)
    check(f"dmtrl {' '.join(words[:2])} ends with {code}", done.returncode == code)
    return done.stdout + done.stderr


def main() -> None:
    present = [name for name in OPTIONAL if find_spec(name) is not None]
    check("no extra is installed", not present)
    check("the lab is not part of the wheel", find_spec("dmtrl_lab") is None)
    check("one version", version("dmtrl") == dmtrl.__version__ and dmtrl.__version__ in shell("--version"))
    check("every public name can be imported", all(hasattr(dmtrl, name) for name in dmtrl.__all__))

    rng = np.random.default_rng(0)
    X, shop = rng.normal(size=(90, 3)), np.repeat(["a", "b", "c"], 30)
    y = X[:, 0] + 0.1 * rng.normal(size=90)
    model = MTRLRegressor().fit(X, y, tasks=shop)
    check("a fit is certified", model.certificate_.relative_gap <= model.tol)
    chosen = MTRLRegressorCV(cv=3, lambdas=[0.1, 0.01]).fit(X, y, tasks=shop)
    check("cross-validation chooses lambda", chosen.reg_lambda_ in (0.1, 0.01))
    classifier = MTRLClassifier().fit(X, np.where(y > 0, "yes", "no"), tasks=shop)
    check("classes are predicted", classifier.score(X, np.where(y > 0, "yes", "no"), tasks=shop) > 0.9)
    model.save("model.dmtrl")
    same = np.array_equal(dmtrl.load("model.dmtrl").predict(X, tasks=shop), model.predict(X, tasks=shop))
    check("a saved model predicts the same", same)
    dmtrl.export(model, "model.json")
    exported = json.loads(Path("model.json").read_text(encoding="utf-8"))
    check("coefficients are exported", len(exported["models"]) == 3)
    shell("export", "model.dmtrl", "-o", "model.csv")
    comparison = model.compare(X, y, shop)
    check("notebooks show a comparison", "<table" in comparison._repr_html_())

    Path("data.csv").write_text("shop,x,y\na,1,2\n", encoding="utf-8")
    needs = shell("fit", "data.csv", "--task", "shop", "--target", "y", "--out", "new.dmtrl", code=1)
    check("reading files names its extra", 'pip install "dmtrl[frames]"' in needs)
    needs = shell("report", "model.dmtrl", code=1)
    check("pages name their extra", 'pip install "dmtrl[report]"' in needs)
    says("a study over a network names its extra", 'pip install "dmtrl[federation]"', import_flare)
    says("tables name their extra", 'pip install "dmtrl[frames]"', comparison.table)
    plot = dmtrl.TaskCorrelationDisplay.from_estimator
    says("plots name their extra", 'pip install "dmtrl[plot]"', lambda: plot(model))
    says(
        "Ray names its extra",
        'pip install "dmtrl[ray]"',
        lambda: MTRLRegressor(engine="ray").fit(X, y, tasks=shop),
    )
    says(
        "URLs name their extra",
        'pip install "dmtrl[ray]"',
        lambda: model.fit(X, y, tasks=shop, checkpoint="s3://bucket/run"),
    )
    says("ONNX names its extra", 'pip install "dmtrl[onnx]"', lambda: dmtrl.export(model, "a.onnx", task="a"))


def import_flare() -> None:
    import dmtrl.federation.flare  # noqa: F401


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(f"dmtrl {dmtrl.__version__} on Python {sys.version.split()[0]}, without extras:")
        main()
        os.chdir(Path(folder).anchor)
