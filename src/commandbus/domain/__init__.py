"""The domain model: pure values and rules, without I/O, clocks or threads."""
