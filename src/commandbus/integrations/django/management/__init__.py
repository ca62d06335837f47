"""Where Django looks for commands of its command line."""
