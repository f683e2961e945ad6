"""What each shell command does, as typed library functions."""
