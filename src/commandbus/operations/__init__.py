"""Use cases, written once for both runtimes; their docstrings are the public documentation."""
