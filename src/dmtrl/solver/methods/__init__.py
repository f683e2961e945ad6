"""How the coordinator turns dual vectors B into weights W: joint splitting, alternation, asynchronous splitting."""
