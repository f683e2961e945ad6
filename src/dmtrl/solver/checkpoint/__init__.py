"""Checkpoints: where a computation stands, kept in a folder or behind a URL, so that it resumes with the same bits.

`options` is what a user asks for, `versions` the folders on disk, `state` turns a dataclass into arrays, `identity`
tells whether a checkpoint belongs to a problem, `session` writes versions during a computation and resumes from one,
`paths` does so for a cross-validation whose paths run at the same time.
"""

from dmtrl.solver.checkpoint.options import Checkpoint
from dmtrl.solver.checkpoint.session import CheckpointSession, open_session
from dmtrl.solver.checkpoint.versions import home_of, newest

__all__ = ["Checkpoint", "CheckpointSession", "home_of", "newest", "open_session"]
