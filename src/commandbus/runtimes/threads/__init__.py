"""The native thread runtime: no event loop, except for handlers that bring one."""
