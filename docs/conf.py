"""Settings of the documentation site. `make docs` builds it from the root of the repository into build/docs.

The pages are the Markdown files that the tests execute, as they are. The folders are those of the repository, so that
links between docs/, examples/ and the root hold on the site too; `docs/redirect` leads from the top to the first page.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from dmtrl.cli.main import main

DOCS = Path(__file__).resolve().parent
VERSION = re.search(r'^__version__ = "(.+)"', (DOCS.parent / "src/dmtrl/__init__.py").read_text("utf-8"), re.MULTILINE)

project = "dmtrl"
author = "the dmtrl developers"
copyright = "the dmtrl developers, BSD 3-Clause"
version = release = VERSION[1] if VERSION else ""

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/*.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
exclude_patterns = [".*", ".venv*", "build", "dist", "src", "lab", "tests", "docs/_templates"]
# lists of links, for readers of the repository
exclude_patterns += ["README.md", "docs/README.md", "examples/README.md"]
templates_path = [str(DOCS / "_templates")]
default_role = "code"  # docstrings write `name` as Markdown does

# Markdown as GitHub reads it: dollars around mathematics, and anchors of headings
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# One page per public name, from its numpydoc docstring
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the docstrings say the types
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# MathJax from a package, copied into the site: pages need no network
mathjax_package = find_spec("sphinx-mathjax-offline")
if mathjax_package is None or mathjax_package.origin is None:
    raise ImportError("the documentation needs sphinx-mathjax-offline: run `make docs`.")
html_static_path = ["_static", str(Path(mathjax_package.origin).parent / "static" / "mathjax" / "tex-svg.js")]
mathjax_path = "tex-svg.js"

html_theme = "pydata_sphinx_theme"
html_title = "dmtrl"
html_css_files = ["site.css"]
html_extra_path = ["redirect"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "dmtrl"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"docs/index": [], "CHANGELOG": []}

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


def help_pages(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """A section with the help text of a command, and those of its subcommands."""
    context = click.Context(command, parent=parent, info_name=name, terminal_width=78, max_content_width=78)
    words = context.command_path
    yield f"{words}\n{'-' * len(words)}\n"
    yield ".. code-block:: text\n\n" + "".join(f"   {line}\n" for line in command.get_help(context).splitlines())
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            if found is not None:
                yield from help_pages(found, part, context)


def write_command_reference(app: Any) -> None:
    """The help texts of all commands as a page."""
    title = "Command-line reference\n======================\n"
    page = DOCS / "api" / "generated" / "commands.rst"
    text = "\n".join([title, *help_pages(main, "dmtrl")])
    page.parent.mkdir(exist_ok=True)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("builder-inited", write_command_reference)
