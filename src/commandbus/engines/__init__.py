"""Where commands are kept: one folder per engine. Engines never import each other."""
