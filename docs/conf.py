"""Settings of the site. ``make docs`` writes its source from docs/ and runs Sphinx on that."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import holdfast

project = "Holdfast"
author = "The Holdfast developers"
project_copyright = "The Holdfast developers"
version = release = holdfast.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "website.names",
]
# Equations are Unicode in code blocks, as in the code: no page needs a mathematics engine or a network.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
suppress_warnings = ["ref.python"]  # a type in a signature whose short name two packages have: the first is linked
python_maximum_signature_line_length = 88
default_role = "code"

html_theme = "furo"
html_title = "Holdfast"
html_static_path = [str(Path(__file__).parent / "_static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_favicon = str(Path(__file__).parent / "_static" / "mark.svg")
