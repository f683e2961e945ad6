"""dmtrl fit: words to a FitRequest, and what came of it to a summary or JSON.

Room: commands. What is decided about data is decided in fitting.py.
"""

import json
import shlex
import sys
import time
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import INTERRUPTED, printable, told_in_sentences
from dmtrl.tables.discovery import find_parts
from dmtrl.tables.output import check_output

if TYPE_CHECKING:
    from dmtrl.solver.checkpoint import Place
    from dmtrl.workflows.fit import FitRequest, Prepared

KINDS = ("regression", "classification")
LOSSES = ("squared", "absolute", "huber", "epsilon_insensitive", "quantile", "poisson",
          "logistic", "hinge", "smoothed_hinge", "squared_hinge")  # fmt: skip


class Lambda(click.ParamType):  # not generic in click 8.2
    name = "auto|NUMBER"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | None:
        if value is None or value == "auto":
            return None
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is neither auto nor a number", param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"{value} is not above zero", param, ctx)
        return number


def _losses(ctx: Any, param: Any, incomplete: str) -> list[str]:
    return [loss for loss in LOSSES if loss.startswith(incomplete)]


@click.command(name="fit", options_metavar="--task COL --target COL [OPTIONS]")
@click.argument("data", nargs=-1, required=True, type=click.Path(), metavar="DATA...")
@click.option("--task", metavar="COL", help="Column that names the task of each row.")
@click.option("--target", metavar="COL", help="Column to predict.")
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help=f"{' or '.join(KINDS)} [guessed].")
@click.option("--loss", metavar="NAME[=X]", shell_complete=_losses, help="As logistic, huber=2, quantile=0.9.")
@click.option("--lambda", "reg_lambda", type=Lambda(), default="auto", help="Chosen by cross-validation, or given.")
@click.option("--common/--no-common", default=None, help="A part all tasks share, or none [both tried].")
@click.option("--weights", metavar="COL", help="Column with the weight of each row.")
@click.option("--drop", metavar="COL", multiple=True, help="Leave a column out.")
@click.option("--category", metavar="COL", multiple=True, help="Numbers that are names.")
@click.option("--number", metavar="COL", multiple=True, help="Use as a number, whatever it looks like.")
@click.option("--missing", metavar="TEXT", multiple=True, help="Text that stands for no value, as n/k.")
@click.option("--many-tasks", is_flag=True, help="Yes, there are that many tasks.")
@click.option("--tol", type=click.FloatRange(0, 1, min_open=True), default=1e-3, help="Proven accuracy [0.001].")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Which random folds to draw.")
@click.option("--jobs", type=int, help="Threads [one for small data, else all cores].")
@click.option("--engine", type=click.Choice(("local", "ray")), default="local", help="Threads here, or a cluster.")
@click.option("--address", metavar="HOST:PORT", help="Of a Ray cluster that runs already.")
@click.option("--workers", metavar="N", type=click.IntRange(1), help="Ray actors [one a processor].")
@click.option(
    "--max-staleness", metavar="N", type=click.IntRange(0), default=0,
    help="Do not wait for the slowest worker: others may run N answers ahead [0].",
)  # fmt: skip
@click.option("--out", "-o", type=click.Path(), default="model.dmtrl", help="The model's file [model.dmtrl].")
@click.option("--force", is_flag=True, help="Replace the model, or the checkpoint, that is there.")
@click.option(
    "--checkpoint", type=click.Path(), metavar="PATH|URL",
    help="Where to keep how far the fit is, for all machines to see [beside the model].",
)  # fmt: skip
@click.option("--resume", type=click.Path(), metavar="PATH|URL", help="Go on from an interrupted fit's checkpoint.")
@click.option("--compare", is_flag=True, help="Also learn each task alone: whom does sharing help?")
@click.option("--no-page", is_flag=True, help="Write no page beside the model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def command(
    ctx: click.Context, data: tuple[str, ...], out: str, force: bool, resume: str | None, checkpoint: str | None,
    compare: bool, no_page: bool, as_json: bool, quiet: bool, **wishes: Any,
) -> None:  # fmt: skip
    """Learn one model per task from data files.

    DATA: CSV, Parquet, Arrow, libsvm or npz files, or folders of them; where no column names the task, each file of
    several is one.

    \b
    Example: dmtrl fit marks.csv --task school --target score --drop remarks
    """
    began = time.perf_counter()
    page = None if no_page else Path(out).with_suffix(".html")
    with told_in_sentences():  # what is cheap to see is said before the numerical libraries are loaded
        find_parts(data)
        for path in (Path(out), page):
            if path is not None:
                check_output(path, force, data)
    from dmtrl.workflows.fit import FitRequest, Interrupted, check_nothing_kept

    try:
        with told_in_sentences():
            if not force:
                check_nothing_kept(Path(out), resume, checkpoint)
            found = _fit(FitRequest(data, **wishes), Path(out), page, resume, checkpoint, compare, as_json, quiet)
    except Interrupted as stop:
        _say_how_to_go_on(ctx.find_root().obj, stop.checkpoint)
        ctx.exit(INTERRUPTED)
    except KeyboardInterrupt:
        click.echo("stopped; nothing was written", err=True)
        ctx.exit(INTERRUPTED)
    found["seconds"]["total"] = time.perf_counter() - began
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    elif not quiet:
        from dmtrl.cli.fit_summary import print_summary

        print_summary(found)


def _fit(
    request: "FitRequest", out: Path, page: Path | None, resume: str | None, checkpoint: str | None,
    compare: bool, as_json: bool, quiet: bool,
) -> dict[str, Any]:  # fmt: skip
    from dmtrl import __version__
    from dmtrl.workflows.findings import document
    from dmtrl.workflows.fit import fit, prepare

    began = time.perf_counter()
    with display(quiet) as watcher:
        prepared = prepare(request, watcher)
    seconds = {"reading": time.perf_counter() - began}
    if not (quiet or as_json):
        from dmtrl.cli.fit_summary import print_columns

        print_columns(prepared.preparation.table(), prepared.notes)
    comparison = None
    with display(quiet) as watcher:
        # Ray tells of a lost process on stdout, which is for what was asked for
        with redirect_stdout(sys.stderr) if request.engine == "ray" else nullcontext():
            model = fit(prepared, request, watcher, out, resume, checkpoint)
        if compare:
            watcher.stage("comparing with each task alone and all tasks as one (Ctrl-C leaves this out)")
            try:
                comparison = model.compare(prepared.X, prepared.y, prepared.tasks, prepared.weight)
            except KeyboardInterrupt:
                prepared.notes.append("the comparison was stopped")
        written = _write_page(page, model, prepared, comparison, watcher)
    found = document(model, prepared, comparison)
    more = {"dmtrl": __version__, "model": str(out), "data": list(map(str, request.data)), "report": written}
    return {**more, **found, "seconds": seconds | prepared.seconds}


def _write_page(page: Path | None, model: Any, prepared: "Prepared", comparison: Any, watcher: Any) -> str | None:
    """The page's path. The model is saved by now, so whatever stands in the way of a page becomes a note."""
    from dmtrl.report.model_page import write_model_page

    if page is None:
        return None
    watcher.stage("writing the page (Ctrl-C leaves this out)")
    try:
        return str(write_model_page(model, page, prepared.X, prepared.y, prepared.tasks, comparison or False))
    except KeyboardInterrupt:
        prepared.notes.append("the page was left out")
    except (ImportError, OSError) as error:
        prepared.notes.append(f"no page was written: {error}")
    return None


def _say_how_to_go_on(words: list[str], checkpoint: "Place | None") -> None:
    if checkpoint is None:
        click.echo("stopped; nothing was written", err=True)
        return
    again = [word for word in words if not word.startswith("--resume=")]
    if "--resume" in again:
        i = again.index("--resume")
        del again[i : i + 2]
    line = shlex.join(["dmtrl", *again, "--resume", str(checkpoint)])
    click.echo(f"stopped; what was found so far is kept. To go on:\n  {printable(line)}", err=True)
