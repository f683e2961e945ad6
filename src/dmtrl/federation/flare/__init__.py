"""A study between organisations over NVIDIA FLARE: mutual TLS, one outbound connection per site.

The path of a message: `engines/recovery.py: RecoveringEngine` -> `server/sites.py: Sites` -> FLARE ->
`site/site_worker.py: SiteWorker` -> `site/inbox.py: Inbox` -> `federation/site/site.py: Site.answer`. This is the only
folder that imports nvflare.
"""

from importlib.util import find_spec

if find_spec("nvflare") is None:
    raise ImportError('a study over a network needs NVIDIA FLARE: pip install "dmtrl[federation]"')
