"""The commands of the shell, one file each, with no logic of their own.

Room: below cli, above all else. A new command is a file with a click command named `command`, and its name in
`cli.COMMANDS`. What is slow to import is imported inside the command, so that help comes at once.
"""
