"""One file per thing that is measured; each has a function `subjects`."""
