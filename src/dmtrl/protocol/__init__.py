"""What travels between coordinator and workers."""
