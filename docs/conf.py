"""Sphinx: ``sphinx-build -W -b html docs site`` (extra ``docs``). The pages are those that people
read in the repository; tests hold what they say against the sources."""

import re
import sys
from importlib import metadata
from pathlib import Path

import imagesize
from docutils import nodes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project, author = "numba_marlin", "the developers of numba_marlin"
version = release = metadata.version("numba_marlin")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme, html_title = "furo", "numba_marlin"
highlight_language = "none"  # what programs print is not Python
html_copy_source = html_show_sourcelink = html_show_copyright = False
html_static_path, html_css_files = ["static"], ["site.css"]
exclude_patterns = ["README.md"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)(\.\./)?([^)#]+)(#[^)]*)?\)")
_PARAMETER = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): ")
PAGES = {path.stem for path in Path(__file__).parent.glob("*.md")}


def links_stay_inside(app, docname, source):
    """A link to a page of the site stays one. One to a file of the repository becomes a download;
    one to a folder, its text: this site must be whole without the repository."""

    def link(found):
        text, _, target, _ = found.groups()
        name = Path(target).name
        if target.removeprefix("docs/") == name and Path(name).stem in PAGES:
            return found[0]
        if (ROOT / target).is_file() and "`" not in text:
            return f"{{download}}`{text} <../{target}>`"
        return text

    source[0] = _LINK.sub(link, source[0])


def docstrings(app, what, name, obj, options, lines):
    """Docstrings here say ``name: what it is``, further lines indented, and indent examples:
    reStructuredText wants a list, and ``::`` before what is to stay as it is."""
    found, inside, verbatim = [], False, False
    for line in lines:
        begins, indented = _PARAMETER.match(line), line.startswith("    ")
        blank = not line.strip()
        verbatim = (verbatim and (indented or blank)) or (
            not inside and indented and bool(found) and not found[-1].strip()
        )
        if verbatim:
            if indented and not any(each == "::" for each in found[-2:]) and not found[-1].strip():
                found += ["::", ""]
            found.append(line)
            continue
        line = line.replace("|", r"\|")  # |x| is no substitution
        if begins:
            found += [""] * (not inside)
            found.append(f"- **{begins[1]}**: {line[begins.end() :]}")
        elif inside and indented:
            found.append(line[2:])
        else:
            found += [""] * (inside and not blank)
            found.append(line)
        inside = bool(begins) or (inside and (indented or blank))
    lines[:] = found


def pictures_open(app, doctree):
    """On a telephone a picture is too small to read: with a width, Sphinx links it to its file."""
    for picture in doctree.findall(nodes.image):
        size = imagesize.get(Path(app.srcdir) / picture["uri"])
        if size[0] > 0:  # not of every SVG
            picture["width"] = f"{size[0]}px"


def setup(app):
    app.connect("doctree-read", pictures_open)
    app.connect("autodoc-process-docstring", docstrings)
    app.connect("source-read", links_stay_inside)
    app.connect(
        "include-read", lambda app, path, parent, content: links_stay_inside(app, "", content)
    )
