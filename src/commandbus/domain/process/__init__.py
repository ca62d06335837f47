"""Processes (sagas): what they are made of, how they are declared, what follows from what."""
