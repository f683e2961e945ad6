"""One word, one meaning: the glossary has every word of our own, and keys in files are identifiers."""

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import MTRLRegressorCV
from dmtrl.federation.coordinator.results import StudyResult, TaskResult
from dmtrl.solver.checkpoint import versions

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dmtrl"
LAB = ROOT / "lab" / "src" / "dmtrl_lab"

# Words that mean in dmtrl what they mean elsewhere: in English, in Python, in statistics, or as the name of a package.
ORDINARY = set(
    re.findall(
        r"\w+",
        """
a accounting action activities added advice answering any api array arrow ascent asker asking asynchronous base
batch begin begun blas block bounds builtin by cache callback category chart check class classifier cli close codec
column comparison compile content context controller converged convergence convert correlation count csv custom cv
data dataset date declared demo describe diagnostics discovery display dmtrl docstring dot double download draft
dropped dual end error estimator event exact exception exchange exist export fact federation field figure file finish
finished finisher fit fitted flare folder format graph group handle heat hello hold identity improved in initial input
interactive interrupted interval join joined kernel key known label launcher lazy learned learning leaving left libsvm
likelihood limits line list live lookup loss losses lost main marginal masking measure measured message metric minimum
mtrl name nearest new newton no norm not note notebook npz nuclear number numerics onnx option or ordered output page
pair panel parquet parser plain plot predict predicted prepare prepared primal privacy private process processes
product progress protocol provisioned publish published question ray reader reading real record recovering recovery
refused registry regressor rejoin released remote replacement reply report request restart restarting restore restored
result rff row rowwise save saved scalar scale scan school scorer search second section series server service share
silent similarity simulate simulation softmax spectrum spline spread start state status stopped storage strength
subset sum summary synthetic target text theme thread to toml total up use used vector violation warm warning welcome
word work workflow writer
""",
    )
)


def words(name: str) -> Iterator[str]:
    """The words of a name in snake_case or CamelCase, in lower case."""
    for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name):
        yield part.lower()


def singular(word: str) -> set[str]:
    """The word, and what it is the plural of."""
    return {word, word.removesuffix("s"), word.removesuffix("es")}


def names() -> dict[str, str]:
    """Every word of the name of a file or a public class of the library, with one place where it occurs."""
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE)
        for part in path.with_suffix("").parts:
            found |= dict.fromkeys(words(part if part != "__init__" else ""), str(path))
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found |= dict.fromkeys(words(node.name), f"{path}: {node.name}")
    return found


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def glossary() -> set[str]:
    """The words of the terms of the glossary."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    terms = re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE)
    return {word for term in terms for word in words(term)}


def test_the_glossary_has_every_word_of_our_own() -> None:
    known = {form for word in {*ORDINARY, *glossary()} for form in singular(word)}
    missing = {word: where for word, where in names().items() if not singular(word) & known}
    assert not missing, f"not in the glossary of docs/architecture.md: {missing}"
    members = {"bracket", "candidate", "kept", "level", "offset", "shared", "cell"}  # not names of files or classes
    assert members <= glossary()


def test_no_word_is_both_ordinary_and_our_own() -> None:
    assert not sorted(ORDINARY & glossary())


def uses_of_tau(file: Path) -> Iterator[int]:
    """The lines where tau is a variable, a parameter, a field, a keyword or a key, but not those of attributes."""
    for node in ast.walk(parsed(file)):
        name = (
            node.id if isinstance(node, ast.Name)
            else node.arg if isinstance(node, ast.arg | ast.keyword)
            else next((key.value for key in node.keys if isinstance(key, ast.Constant) and key.value == "tau"), None)
            if isinstance(node, ast.Dict)
            else None
        )  # fmt: skip
        if name == "tau":
            yield getattr(node, "lineno", 0)


def test_tau_is_a_symbol_of_relationships_only() -> None:
    """Users set `common`, and files and results hold it; tau = common / m is in formulas."""
    folders = [(SOURCE, file) for file in SOURCE.rglob("*.py")] + [(LAB, file) for file in LAB.rglob("*.py")]
    found = {
        f"{file.relative_to(folder)}:{line}"
        for folder, file in folders
        if "relationship" not in file.relative_to(folder).parts
        for line in uses_of_tau(file)
    }
    assert not found, f"common, not tau, outside relationship/: {sorted(found)}"
    assert any(True for file in (SOURCE / "relationship").rglob("*.py") for _ in uses_of_tau(file))


KEY = r"\w+([.-]\w+)*"  # identifiers and numbers, joined where a key is a path of attributes or numbers a fold


def keys(value: Any) -> Iterator[str]:
    """All keys of nested dictionaries."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of a checkpoint of a search, of a model file, and of the result of a study."""
    folder = tmp_path_factory.mktemp("written")
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(90, 3)), np.repeat([1, 2, 3], 30)
    y = X @ rng.normal(size=3) + 0.1 * rng.normal(size=90)
    model = MTRLRegressorCV(lambdas=(1.0, 0.1), commons=(1.0,), cv=3, tol=1e-2)
    model.fit(X, y, tasks=tasks, checkpoint=folder / "checkpoint")
    model.save(folder / "model")
    result = StudyResult(
        "heart", "0" * 64, ("a", "b"), (), (TaskResult("one task", "a", 10),), 0.1, 1.0, 1.0, 0.9, 0.1, 3, False, ""
    )
    result.write(folder)
    version = versions.read(str(folder / "checkpoint"))
    manifest = json.loads((Path(version.folder) / "manifest.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(folder / "model") as archive:
        header = json.loads(archive.read("dmtrl-model.json"))
    return {
        "checkpoint": [manifest, dict(version.header), dict.fromkeys(version.arrays)],
        "model": header,
        "result": json.loads((folder / "result.json").read_text(encoding="utf-8")),
    }


@pytest.mark.parametrize("file", ["checkpoint", "model", "result"])
def test_keys_in_files_are_identifiers(written: dict[str, Any], file: str) -> None:
    found = list(keys(written[file]))
    assert len(found) > 5
    assert not sorted({key for key in found if not re.fullmatch(KEY, key)})
    assert "tau" not in found
