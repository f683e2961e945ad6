"""Help that fits a screen, and completion in the shells that people have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from dmtrl.cli.fit import LOSSES
from dmtrl.cli.main import COMMANDS, main
from dmtrl.losses import BUILTIN
from support.shell_data import run


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_a_screen_and_shows_an_example(command: str | None) -> None:
    result = run(*([command] if command else []), "--help", columns="80")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 56
    assert max(map(len, lines)) <= 80
    assert f"dmtrl {command or 'fit'} " in result.output.split("Usage:")[1].split("\n", 1)[1]


def test_fit_help_lists_checkpoint_and_staleness_options() -> None:
    words = " ".join(run("fit", "--help", columns="80").output.split())
    assert "--max-staleness N Answers by which workers may be ahead of the slowest [0]." in words
    assert "--checkpoint PATH|URL Checkpoint folder, visible to all machines [beside the model]." in words
    assert "--resume PATH|URL Resume from the checkpoint of a fit." in words


def test_help_lists_exit_codes() -> None:
    assert "130 interrupted" in " ".join(run("--help").output.split())


def test_fit_accepts_every_loss() -> None:
    assert sorted(LOSSES) == sorted(BUILTIN)


def _completions(*words: str) -> list[str]:
    *before, incomplete = words
    shell = BashComplete(main, {}, "dmtrl", "_DMTRL_COMPLETE")
    return [f"{found.type},{found.value}" for found in shell.get_completions(before, incomplete)]


def test_completion_of_commands_options_losses_and_files() -> None:
    assert _completions("f") == ["plain,fit"]
    assert "plain,--target" in _completions("fit", "a.csv", "--ta")
    assert _completions("fit", "a.csv", "--loss", "squared_") == ["plain,squared_hinge"]
    for words in (("fit", "da"), ("predict", "mo"), ("fit", "a.csv", "--out", "mo")):
        assert _completions(*words) == [f"file,{words[-1]}"], "bash then offers the files"


@pytest.mark.subprocess
def test_completion_script_for_bash() -> None:
    env = os.environ | {"_DMTRL_COMPLETE": "bash_source"}
    code = "import sys; sys.argv[0] = 'dmtrl'; from dmtrl.cli.main import main; main(prog_name='dmtrl')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "complete -o nosort -F _dmtrl_completion dmtrl" in done.stdout


def test_each_command_is_a_file_of_its_own() -> None:
    folder = Path(sys.modules[main.__class__.__module__].__file__ or "").parent
    for name in COMMANDS:
        assert (folder / f"{name}.py").exists()
