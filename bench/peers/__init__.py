"""The peers: what each is, how it is installed, and how its processes are driven."""
