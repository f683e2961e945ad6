"""How a command ends when its work cannot be done.

Room: commands. Errors that are the data's or the user's become one sentence and exit code 1; a bug keeps its traceback.
"""

import shlex
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dmtrl.exceptions import MixedColumnError, OutputExistsError, WorkerLostError

INTERRUPTED = 130
_DIRECTIONS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str, allowed: str = "") -> str:
    """Text of somebody's data for a terminal: what would move the cursor, set colours or turn the writing direction
    becomes a question mark in a box."""
    return "".join("\ufffd" if _commands_a_terminal(sign) and sign not in allowed else sign for sign in text)


def _commands_a_terminal(sign: str) -> bool:
    return unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in _DIRECTIONS


@contextmanager
def told_in_sentences() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # somebody reads only the head of the output; click ends quietly
        raise
    except OutputExistsError as error:
        message = f"{error.path} already exists; choose another name, or pass --force to replace it"
        raise click.ClickException(printable(message, "\n")) from error
    except OSError as error:
        told = error.strerror and error.filename
        raise click.ClickException(
            printable(f"{error.filename}: {error.strerror}" if told else str(error), "\n")
        ) from error
    except MixedColumnError as error:
        raise click.ClickException(printable(_mixed_column(error), "\n")) from error
    except (ValueError, ArithmeticError, ImportError) as error:
        raise click.ClickException(printable(str(error), "\n")) from error
    except WorkerLostError as error:
        resume = f"; resume with --resume {shlex.quote(error.checkpoint)}" if error.checkpoint else ""
        raise click.ClickException(printable(f"{error.args[0]}{resume}", "\n")) from error
    except MemoryError as error:
        raise click.ClickException("there is not enough memory for this; use fewer rows or columns") from error


def _mixed_column(error: MixedColumnError) -> str:
    """The message of a column of mixed cells, with the options that help."""
    if error.is_target:
        otherwise = "or --kind classification if its values are classes"
    else:
        column = shlex.quote(error.column)
        otherwise = f"--drop {column} to leave the column out, or --category {column} if its values are names"
    missing = f"--missing {shlex.quote(error.value)} if it means missing"
    return f"{error.description}; correct it, or pass {missing}, {otherwise}"
