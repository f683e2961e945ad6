"""The command line: one file per command, no logic of its own.

A new command is a file with a click command named `command`, and its name in `main.COMMANDS`. Slow imports stay inside
the command, so that help appears at once.
"""
