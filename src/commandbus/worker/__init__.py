"""Running commands, without waiting: what to do next is decided here, and done by a runtime."""
