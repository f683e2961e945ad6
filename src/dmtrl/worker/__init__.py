"""A worker: holds the rows of its tasks and their dual variables, and answers messages."""
