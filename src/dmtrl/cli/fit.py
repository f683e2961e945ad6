"""The command `dmtrl fit`."""

import json
import math
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dmtrl.cli.display import Display, display
from dmtrl.cli.errors import INTERRUPTED, note_text, printable
from dmtrl.cli.options import KINDS
from dmtrl.workflows.requests import FitRequest

if TYPE_CHECKING:
    from dmtrl.solver.checkpoint.options import PathLike
    from dmtrl.workflows.prepare import TrainingTable

REGRESSION_LOSSES = ("squared", "absolute", "huber", "epsilon_insensitive", "quantile", "poisson")
LOSSES = (*REGRESSION_LOSSES, "logistic", "hinge", "smoothed_hinge", "squared_hinge")


class Number(click.FloatRange):
    """A range of numbers without NaN and infinity."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class WordOrNumber(Number):
    """One of some words, each with its value, or a number."""

    def __init__(self, words: dict[str, str | None], number: str, **limits: Any):
        super().__init__(**limits)
        self._words, self._number = words, number

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in self._words:
            return self._words[value]
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither {' nor '.join(self._words)} nor {self._number}", param, ctx)


class ColumnSetting(click.ParamType):
    """COL, or COL=VALUE. A column name may hold "=" only if a value follows."""

    def __init__(self, value: str, allowed: tuple[str, ...] = ()):
        self.name, self._allowed = f"COL[={value}]", allowed

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str | None]:
        column, equals, setting = value.rpartition("=")
        if not equals:
            return value, None
        if not column or not setting or (self._allowed and setting not in self._allowed):
            hint = f"; it must be {' or '.join(self._allowed)}" if self._allowed else ""
            self.fail(f"{value!r} is not {self.name}{hint}", param, ctx)
        return column, setting


LAMBDA = WordOrNumber({"auto": None}, "a positive finite number", min=0, min_open=True)
TASK_WEIGHT = WordOrNumber({"equal": "equal", "rows": "rows"}, "a number from 0 to 1", min=0, max=1)


def _losses(ctx: Any, param: Any, incomplete: str) -> list[str]:
    return [loss for loss in LOSSES if loss.startswith(incomplete)]


@click.command(name="fit", options_metavar="--task COL --target COL [OPTIONS]")
@click.argument("data", nargs=-1, required=True, type=click.Path(), metavar="DATA...")
@click.option("--task", metavar="COL", help="Column that names the task of each row.")
@click.option("--target", metavar="COL", help="Column to predict.")
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help=f"{' or '.join(KINDS)} [inferred].")
@click.option(
    "--loss", metavar="NAME[=X]", shell_complete=_losses, help="Loss, such as logistic, huber=2, quantile=0.9."
)
@click.option(
    "--lambda",
    "reg_lambda",
    type=LAMBDA,
    metavar="auto|NUMBER",
    default="auto",
    help="Regularisation [auto: cross-validation].",
)
@click.option("--common/--no-common", default=None, help="Require or exclude a common component [tries 0, 1, 10].")
@click.option("--own", metavar="NUMBER", type=Number(min=0), help="Strength of the tasks' own parts [tries 0 and 3].")
@click.option(
    "--task-weight",
    type=TASK_WEIGHT,
    metavar="equal|rows|NUMBER",
    default="0.5",
    help="How much a task with n rows counts: equal, rows (each row the same), or n^NUMBER [0.5].",
)
@click.option("--weights", metavar="COL", help="Column with the weight of each row.")
@click.option("--drop", metavar="COL", multiple=True, help="Column to leave out.")
@click.option("--category", metavar="COL", multiple=True, help="Column of numbers to use as categories.")
@click.option("--number", metavar="COL", multiple=True, help="Column to use as numbers.")
@click.option("--date", type=ColumnSetting("FORMAT"), multiple=True, help="Column of dates, such as day=%d.%m.%Y.")
@click.option(
    "--text", type=ColumnSetting("hash", ("tfidf", "hash")), multiple=True, help="Column whose words become features."
)
@click.option("--missing", metavar="TEXT", multiple=True, help="Text that means a missing value, such as n/k.")
@click.option("--encoding", metavar="NAME", help="Encoding of CSV files, such as cp1252 [UTF-8].")
@click.option("--sample", metavar="N", type=click.IntRange(1), help="Use N random rows.")
@click.option("--by-task", is_flag=True, help="Leave the rows in the files; workers read those of their tasks.")
@click.option("--many-tasks", is_flag=True, help="Accept a task column with very many values.")
@click.option(
    "--tol",
    type=Number(0, 1, min_open=True, max_open=True),
    default=1e-3,
    help="Relative gap at which to stop [0.001].",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of folds, row order and --sample.")
@click.option("--jobs", type=int, help="Threads [1 for small data, else all cores].")
@click.option("--engine", type=click.Choice(("local", "ray")), default="local", help="Local threads or a Ray cluster.")
@click.option("--address", metavar="HOST:PORT", help="Address of a running Ray cluster.")
@click.option("--workers", metavar="N", type=click.IntRange(1), help="Number of Ray actors [one per CPU].")
@click.option(
    "--max-staleness",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Answers by which workers may be ahead of the slowest [0].",
)
@click.option("--out", "-o", type=click.Path(), default="model.dmtrl", help="Model file [model.dmtrl].")
@click.option("--force", is_flag=True, help="Overwrite an existing model or checkpoint.")
@click.option(
    "--checkpoint",
    type=click.Path(),
    metavar="PATH|URL",
    help="Checkpoint folder, visible to all machines [beside the model].",
)
@click.option("--resume", type=click.Path(), metavar="PATH|URL", help="Resume from the checkpoint of a fit.")
@click.option("--compare", is_flag=True, help="Also fit each task alone, to see where sharing helps.")
@click.option("--no-page", is_flag=True, help="Do not write a page beside the model.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.pass_context
def command(
    ctx: click.Context, data: tuple[str, ...], out: str, no_page: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Fit one model per task from data files.

    DATA: CSV, Parquet, Arrow, libsvm or npz files, or folders of them. Several files without --task: each is a task.

    \b
    Example: dmtrl fit marks.csv --task school --target score --drop remarks
    """
    options["date"] = dict(options["date"])
    options["text"] = {column: kind or "tfidf" for column, kind in options["text"]}
    page = None if no_page else Path(out).with_suffix(".html")
    request = FitRequest(data, out=Path(out), page=page, **options)
    request.check()  # before the numerical libraries are imported
    from dmtrl.workflows.fit import Interrupted, fit

    # Ray prints messages about lost processes to stdout, which is for results
    stdout, moved = sys.stdout, redirect_stdout(sys.stderr) if request.engine == "ray" else nullcontext()
    try:
        with display(quiet) as shown, moved:
            result = fit(request, shown, lambda table: None if quiet or as_json else _print_table(table, shown, stdout))
    except KeyboardInterrupt as interrupt:
        _print_resume_command(ctx.find_root().obj, interrupt.checkpoint if isinstance(interrupt, Interrupted) else None)
        ctx.exit(INTERRUPTED)
    if as_json:
        values = result.as_dict()
        click.echo(json.dumps(values | {"notes": [note_text(note) for note in values["notes"]]}, allow_nan=False))
    elif not quiet:
        from dmtrl.cli.fit_summary import print_summary

        print_summary(result)


def _print_table(table: "TrainingTable", shown: Display, file: TextIO) -> None:
    """Print what was done with the columns, before the fit begins."""
    from dmtrl.cli.fit_summary import print_columns

    with shown.paused():
        print_columns(table.preparation.table(), table.notes, file)


def _print_resume_command(arguments: list[str], checkpoint: "PathLike | None") -> None:
    if checkpoint is None:
        click.echo("interrupted; nothing was written", err=True)
        return
    again = [argument for argument in arguments if not argument.startswith("--resume=")]
    if "--resume" in again:
        i = again.index("--resume")
        del again[i : i + 2]
    line = shlex.join(["dmtrl", *again, "--resume", str(checkpoint)])
    click.echo(f"interrupted; the checkpoint is saved. To resume:\n  {printable(line)}", err=True)
