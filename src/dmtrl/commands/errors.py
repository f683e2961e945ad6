"""How a command ends when its work cannot be done.

Room: commands. Errors that are the data's or the user's become one sentence and exit code 1; a bug keeps its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import click

INTERRUPTED = 130


@contextmanager
def told_in_sentences() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # somebody reads only the head of the output; click ends quietly
        raise
    except OSError as error:
        told = error.strerror and error.filename
        raise click.ClickException(f"{error.filename}: {error.strerror}" if told else str(error)) from error
    except (ValueError, ArithmeticError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    except MemoryError as error:
        raise click.ClickException("there is not enough memory for this; use fewer rows or columns") from error
