"""How people and other programs meet the bus: the command line, the web, and frameworks."""
