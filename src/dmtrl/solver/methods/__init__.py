"""How the server turns dual vectors B into weights W: joint splitting, alternation, asynchronous splitting."""
