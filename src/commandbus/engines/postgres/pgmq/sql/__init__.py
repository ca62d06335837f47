"""SQL of the PGMQ transport: its tables and functions, and its statements as templates."""
