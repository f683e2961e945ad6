"""Tables as people have them, for the tests of the shell: codes like 007, holes, rare words, dates, remarks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
from click import ClickException
from click.testing import CliRunner, Result

from dmtrl.cli.main import main
from dmtrl.exceptions import CellError

ENV = {"COLUMNS": "120", "TERM": "dumb"}


def run(*words: object, columns: str = "120", answer: str | None = None) -> Result:
    """The result of a command. answer: what is typed."""
    return CliRunner(env=ENV | {"COLUMNS": columns}).invoke(main, [str(word) for word in words], input=answer)


def error_of(*words: object) -> BaseException:
    """The typed error with which a command fails; the command itself prints it in one line."""
    result = CliRunner(env=ENV).invoke(main, [str(word) for word in words], standalone_mode=False)
    assert isinstance(result.exception, ClickException), result.output
    assert result.exception.__cause__ is not None
    return result.exception.__cause__


def bad_cell(*words: object) -> tuple[str, str | None]:
    """The cell that a command cannot read, and where it is."""
    error = error_of(*words)
    assert isinstance(error, CellError)
    return error.value, error.where


def shops(m: int = 5, rows: int = 40, seed: int = 0, shuffled: bool = True) -> pa.Table:
    """Shops "001", "002", ... with numbers and a category that matter, a date, and columns that cannot matter."""
    rng = np.random.default_rng(seed)
    n = m * rows
    shop = np.repeat(np.arange(1, m + 1), rows)
    size, price = rng.normal(50, 10, n).round(2), rng.normal(0, 1, n).round(3)
    colour = rng.choice(["red", "green", "blue"], n)
    colour[:3] = ["puce", "mauve", "red"]  # rare ones
    days = rng.integers(0, 700, n)
    slope = np.where(shop % 2 == 0, 1.0, -1.0)
    sales = slope * price + 0.1 * size + (colour == "red") + 0.2 * rng.normal(size=n)
    columns = {
        "shop": pa.array([f"{i:03d}" for i in shop]),
        "size": pa.array(size, mask=rng.random(n) < 0.1),
        "price": pa.array(price),
        "colour": pa.array(colour.tolist(), mask=rng.random(n) < 0.1),
        "open": pa.array(rng.random(n) < 0.5),
        "day": pa.array((np.datetime64("2021-01-01") + days).astype("datetime64[D]")),
        "remark": pa.array([f'remark {i}, "so" it goes' for i in range(n)]),
        "row_id": pa.array(np.arange(n)),
        "kg": pa.array(np.full(n, 7)),
        "sales": pa.array(sales.round(3)),
        "verdict": pa.array(np.where(sales > 5, "good", "bad").tolist()),
    }
    table = pa.table(columns)
    return table.take(rng.permutation(n)) if shuffled else table


def write(table: pa.Table, path: Path) -> Path:
    """In the format of the path's ending; CSV as text in quotes where needed, holes as nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".csv" in path.name or ".tsv" in path.name:
        options = pa.csv.WriteOptions(delimiter="\t" if ".tsv" in path.name else ",")
        with pa.output_stream(str(path), compression="detect") as file:
            pa.csv.write_csv(table, file, options)
    elif path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    else:
        pa.feather.write_feather(table, str(path))
    return path
