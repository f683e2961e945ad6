"""The command line of the lab. Slow imports stay inside the commands, so that help appears at once."""
