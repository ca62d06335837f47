"""What the words mean: pure values and rules, without I/O, clocks or threads."""
