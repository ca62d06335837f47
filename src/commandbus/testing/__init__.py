"""Public helpers for the tests of an application, and for our own."""
