"""Write the site's source from docs/ and build it: ``PYTHONPATH=tools python -m website``.

Warnings are errors. The source is in build/site, the site in build/docs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import PurePosixPath

from website.api import api_pages
from website.catalogue import catalogue_pages
from website.contents import changes
from website.gallery import gallery_pages
from website.links import ROOT, site_path
from website.stage import IN_SIDEBAR, Stage, stage_documents

STAGED, SITE, DOCTREES = (ROOT / "build" / name for name in ("site", "docs", "doctrees"))


def main() -> int:
    stage = Stage(STAGED)
    pictured, figures = gallery_pages()
    made, reference = {**catalogue_pages(), **pictured}, api_pages()
    for name, content in {**reference, **figures}.items():
        stage.write(name, content)
    pages = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))]
    known = {PurePosixPath(site_path(it)).with_suffix("").as_posix() for it in made} | {"api/index"}
    stage_documents(stage, [*pages, *IN_SIDEBAR], changes(pages, known), made)
    stage.done()
    words = ["-W", "--keep-going", "-q", "-d", str(DOCTREES), "-c", str(ROOT / "docs"), str(STAGED), str(SITE)]
    done = subprocess.run([sys.executable, "-m", "sphinx", "-b", "html", *words])
    if done.returncode == 0:
        print(f"The site is in {SITE.relative_to(ROOT)}; make docs-serve opens it.")
    else:
        shutil.rmtree(DOCTREES, ignore_errors=True)  # or the next build would not repeat the warnings of this one
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
