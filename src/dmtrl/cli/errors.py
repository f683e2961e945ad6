"""Errors of a command: one message and exit code 1 for what users can correct, a traceback for other errors."""

import errno
import shlex
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dmtrl.exceptions import (
    Advice,
    CheckpointExistsError,
    FederationError,
    NotAModelError,
    RefusedBySiteError,
    Setting,
    StudyStoppedError,
    WorkerLostError,
)

INTERRUPTED = 130
_BUILTIN = (OSError, ValueError, ArithmeticError, ImportError, MemoryError)
_EXPECTED = (*_BUILTIN, FederationError, RefusedBySiteError, StudyStoppedError, WorkerLostError)
_OPTIONS = {"reg_lambda": "--lambda"}  # parameters whose option has another name
_DIRECTIONS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str, allowed: str = "") -> str:
    """Text that is safe to print: characters that control a terminal become U+FFFD."""
    return "".join("\ufffd" if _controls_terminal(char) and char not in allowed else char for char in text)


def _controls_terminal(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in _DIRECTIONS


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an error that the user can fix into one message and exit code 1."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has stopped; click exits quietly
        raise
    except _EXPECTED as error:
        raise click.ClickException(printable(one_line(_message(error)))) from error


@contextmanager
def exit_on_interrupt(advice: str = "") -> Iterator[None]:
    """Turn Ctrl-C into one message and exit code 130. advice: what the user should know or do."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted; {advice}" if advice else "interrupted", err=True)
        click.get_current_context().exit(INTERRUPTED)


def one_line(text: str) -> str:
    """A message of several lines, such as those of other packages, as one sentence."""
    parts = [part for part in (" ".join(line.split()) for line in text.splitlines()) if part]
    joined = ""
    for part in parts:
        joined += part if not joined else f" {part}" if joined[-1] in ":,;." else f"; {part}"
    return joined


def note_text(note: str) -> str:
    """A note in terms of command-line options, safe to print."""
    return printable(one_line(note.message(option) if isinstance(note, Advice) else note))


def _message(error: Exception) -> str:
    """The message of an error, with advice in terms of command-line options."""
    if isinstance(error, NotAModelError):
        return f"{error.path} is not a dmtrl model; the first argument must be a model file, which 'dmtrl fit' writes"
    if isinstance(error, CheckpointExistsError):
        resume = option(Setting("resume", error.path))
        problem = f"{error.path} holds the checkpoint of an interrupted fit"
        return f"{problem}; pass {resume} to continue it, or --force to discard it"
    if isinstance(error, Advice):
        return error.message(option)
    if isinstance(error, MemoryError):
        return "there is not enough memory; use fewer rows or columns"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return _file_error(error)
    return str(error)


def _file_error(error: OSError) -> str:
    """An error of the operating system about a file, in words for the common ones."""
    if error.errno == errno.ENOENT:
        return f"there is no file {error.filename}; check its name and folder"
    if error.errno == errno.EISDIR:
        return f"{error.filename} is a folder; pass the name of a file"
    if error.errno == errno.EACCES:
        return f"no permission to open {error.filename}"
    return f"{error.filename}: {error.strerror}"


def option(setting: Setting) -> str:
    """A setting as a command-line option."""
    name = _OPTIONS.get(setting.name, f"--{setting.name.replace('_', '-')}")
    value = setting.value[0] if isinstance(setting.value, list) else setting.value
    return name if value is None or value is True else f"{name} {shlex.quote(str(value))}"
