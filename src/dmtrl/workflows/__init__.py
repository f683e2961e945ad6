"""What each command does, as typed library functions."""
